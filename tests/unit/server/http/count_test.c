/* However much is asked for in however many ways, the registry of metrics has room for what is counted of it: a series
 * that found none would stop the server. */
#include "dataplane/base/metric.h"
#include "server/http/count.h"
#include "server/http/router.h"
#include "server/service/svc.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

#define ROOM 100 /* for what has no series yet */

static struct kv_httpd httpd;

static void answer(const struct kv_route *route, int status)
{
    struct kv_req req = {.httpd = &httpd, .route = route, .response.status = status};
    kv_http_count(&req, 1, 1);
}

Test(count, all_series_of_a_server_have_a_place_in_the_registry)
{
    httpd.conf.env = &kv_env_system;
    kv_svc_metrics_init();
    kv_http_metrics_init();
    for (int status = 100; status <= 500; status += 100) {
        answer(NULL, status);
        for (unsigned i = 0; i < kv_route_count; i++) {
            answer(&kv_routes[i], status);
        }
    }
    for (unsigned i = 0; i < ROOM; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "n=\"%u\"", i);
        cr_assert(ne(ptr, kv_metric_counter("kv_room_total", "Room.", labels), NULL));
    }
}
