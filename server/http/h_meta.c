/* What anybody may fetch: the contract itself, and the keys that certificates and logs are verified with. */
#include "kv_openapi.h"
#include "server/http/h_shared.h"
#include "server/http/httpd_int.h"
#include "server/http/problem.h"
#include "server/service/svc_certificate.h"

#define PUBLIC_HOUR "public, max-age=3600"

/* Routes that need the service while it is starting. They have no call whose errinfo could carry the text. */
static KV_RC starting(struct kv_req *req)
{
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_fail(&info, KV_E_STARTING, "the server is starting; see /startupz");
    kv_problem(req, rc, &info, NULL);
    return KV_OK;
}

KV_RC kv_h_openapi(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    req->response.content_type = "application/yaml"; /* RFC 9512 */
    req->response.cache_control = PUBLIC_HOUR;
    kv_buf_append(&req->response.body, kv_openapi_yaml, sizeof kv_openapi_yaml);
    return KV_OK;
}

KV_RC kv_h_jwks(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    struct kv_svc *svc = kv_httpd_svc(req->httpd);
    req->response.cache_control = PUBLIC_HOUR;
    return svc == NULL ? starting(req) : kv_svc_jwks(svc, &req->response.body);
}

KV_RC kv_h_log_vkey(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    struct kv_svc *svc = kv_httpd_svc(req->httpd);
    req->response.content_type = "text/plain; charset=utf-8";
    req->response.cache_control = PUBLIC_HOUR;
    return svc == NULL ? starting(req) : kv_svc_log_vkey(svc, &req->response.body);
}
