# Which folder may include which, and where a third-party header may be seen. Input: C files, by their path from the root.
# A folder may include itself. A folder that has no row stands under no roof and is reported.
BEGIN {
    may["api"] = ""
    may["api/clients/c"] = ""
    may["api/clients/examples"] = "" # they include the installed header, as anybody would
    may["dataplane/base"] = "api"
    may["dataplane/crypto"] = "dataplane/base api"
    may["dataplane/io"] = "dataplane/base api"
    may["dataplane/kernels"] = "api"
    may["dataplane/device"] = "dataplane/kernels dataplane/crypto dataplane/base api"
    may["dataplane/keys"] = "dataplane/crypto dataplane/io dataplane/base api"
    may["dataplane/tier"] = "dataplane/io dataplane/base api"
    may["dataplane/engine"] = "dataplane/tier dataplane/keys dataplane/device dataplane/crypto dataplane/io dataplane/base api"
    may["audit"] = "dataplane/crypto dataplane/base api"
    may["policies"] = "dataplane/base api"
    may["server/store"] = "dataplane/base api"
    may["server/service"] = "dataplane/engine dataplane/device dataplane/keys dataplane/crypto dataplane/tier dataplane/io dataplane/base server/store audit policies api"
    may["server/http"] = "server/service dataplane/crypto dataplane/base api"
    may["server/child"] = "dataplane/base api"
    may["server/bench"] = "server/child server/cli policies dataplane/device dataplane/tier dataplane/crypto dataplane/io dataplane/base api"
    may["server/config"] = "dataplane/crypto dataplane/base api"
    # The files of server/ itself wire the storeys together: main, serve, demo.
    may["server"] = "server/bench server/child server/cli server/http server/service server/store server/config dataplane/crypto dataplane/base api"
    may["server/cli"] = "policies audit dataplane/io server/config dataplane/crypto dataplane/base api"

    only["openssl/"] = "^dataplane/crypto/|^server/bench/bench_seal_evp\\.c$"
    only["intel-ipsec-mb.h"] = "^dataplane/crypto/sealed[^/]*\\.c$"
    only["liburing.h"] = "^dataplane/io/io_uring(_pieces\\.c|_int\\.h|\\.c)$"
    only["p11-kit/"] = "^dataplane/keys/roe_pkcs11[^/]*$"
    only["curl/"] = "^dataplane/io/httpc\\.c$|^api/clients/c/"
    only["libpq-fe.h"] = "^server/store/"
    only["jansson.h"] = "^audit/([^/]*_json|jcs[^/]*)\\.c$|^policies/[^/]*_json\\.c$|^server/http/codec[^/]*$|^server/cli/|^api/clients/c/"
    only["seccomp.h"] = "^server/harden\\.c$"
    only["gnutls/"] = "^server/http/tls\\.c$"
    only["microhttpd.h"] = "^server/http/(httpd\\.c|access\\.[ch]|request\\.c|reaper\\.c|stream\\.c)$|^server/bench/bench_rest_bare\\.c$"
}

function folder_of(path) {
    sub(/\/[^\/]*$/, "", path)
    return path
}

function report(why) {
    printf "%s:%d: %s: %s\n", FILENAME, FNR, why, $0
    found = 1
}

FNR == 1 {
    sub(/^\.\//, "", FILENAME)
    here = folder_of(FILENAME)
}

/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    header = $0
    sub(/^[^<"]*[<"]/, "", header)
    sub(/[>"].*$/, "", header)
    for (prefix in only) {
        if (index(header, prefix) == 1 && FILENAME !~ only[prefix]) {
            report("this header is confined to " only[prefix])
        }
    }
    if ($0 !~ /"/) next                                             # a system header
    if (header ~ /^kv_[a-z]+\.h$/ && here !~ /^dataplane/) next     # written at configure time
    if (here == "api" && header ~ /^[a-z]+\.def$/) next             # the registries, included by their neighbour
    there = folder_of(header)
    if (header ~ /_int\.h$/ && there != here) report("a private header of another folder")
    if (FILENAME == "server/main.c" || there == here) next          # wiring sees everything
    if (!(here in may)) report("folder " here " has no row in tests/lint/layers.awk")
    else if (index(" " may[here] " ", " " there " ") == 0) report(here " may not include " there)
}

END { exit found }
