"""Fault points where a round may kill the server, with the highest passing at which it still is likely to come by."""

TIER_STEPS = ("data-write", "data-sync", "log-write", "log-sync")
GENERATION_STEPS = ("ckpt-write", "ckpt-sync", "newlog-write", "newlog-sync", "folder-sync", "ckpt-rename",
                    "renamed-sync")

DATA_POINTS = {
    **{f"tier/nvme/{step}": 25 for step in TIER_STEPS},
    "engine/offload/sealed": 60,
    "engine/offload/published": 60,
    "engine/offload/recorded": 15,
    "engine/demote/start": 30,
    "engine/restore/opened": 40,
    "engine/drop": 2,
    "audit/journal/write": 20,
    "audit/journal/torn": 20,
    "audit/journal/synced": 20,
    "audit/journal/begin": 2,
    "audit/journal/begun": 2,
    "audit/journal/giveback": 2,
    "store/session-create/committed": 3,
    "store/open-session/committed": 3,
    "store/ship-journal/commit": 2,
    "store/ship-journal/committed": 2,
    "store/integrate/commit": 3,
    "store/integrate/committed": 3,
    "store/sign-head/commit": 2,
    "store/sign-head/committed": 2,
}

# The index changes its generation when its log is full, or may be bad: the way that takes one round.
GENERATION_SPECS = [f"tier/nvme/log-sync=fail@{after}once,tier/nvme/{step}=kill@1" for step in GENERATION_STEPS
                    for after in (2, 9)]

ERASE_STEPS = ("requested", "fenced", "stage-listed", "stage-create", "staged", "rekeyed", "destroy", "destroyed", "purged", "verified", "certificate",
               "certified")
ROOT_STEPS = ("create-write", "create-done", "activate", "activated", "destroy-write", "destroy-sync")
TRANSACTIONS = ("erase-request", "erase-take", "erase-fenced", "erase-staged", "erase-rekey", "erase-destroyed",
                "erase-purged", "erase-verified", "certificate", "bundle")

ERASE_POINTS = {
    **{f"erase/{step}": 2 for step in ERASE_STEPS},
    **{f"roe/file/{step}": 2 for step in ROOT_STEPS},
    **{f"audit/anchor/{step}": 2 for step in ("write", "written")},
    **{f"store/{name}/{step}": 2 for name in TRANSACTIONS for step in ("commit", "committed")},
}

# After the certificate: what is left is dropped, and a statement says so.
UPGRADE_POINTS = tuple(["erase/cleaned", "erase/upgrade-signed", "erase/upgraded"] +
                       [f"store/{name}/{step}" for name in ("cleaned", "upgrade-sign", "upgrade-bundle")
                        for step in ("commit", "committed")])

# The same way for all of a tenant, which has a request of its own and something left to do after its certificate.
TENANT_POINTS = {
    **{point: passing for point, passing in ERASE_POINTS.items() if point != "erase/requested" and "erase-request" not in point},
    **{point: 1 for point in ("erase/tenant-requested", "store/erase-tenant/commit", "store/erase-tenant/committed",
                              "store/erase-settle/commit", "store/erase-settle/committed", "erase/settled")},
}

# Requests for many, and ends that nobody asks for at the time: the way that leads to a point.
MANY_POINTS = {
    **{point: "label" for point in ("erase/group-requested", "erase/group-step",
                                    *(f"store/{name}/{step}" for name in ("erase-group", "erase-group-step")
                                      for step in ("commit", "committed")))},
    **{point: "lifetime" for point in ("expire/requested", "store/expire-session/commit", "store/expire-session/committed")},
    **{point: "tenant" for point in ("store/expire-tenant/commit", "store/expire-tenant/committed", "expire/tenant-requested")},
}

# Killed at the first, started again and killed at the second: what recovery itself writes.
IN_RECOVERY = (
    ("erase/requested", "erase/fenced"),
    ("erase/staged", "store/erase-abandon/commit"),
    ("erase/staged", "store/erase-abandon/committed"),
    ("roe/file/create-done", "roe/file/create-done"),
    ("erase/rekeyed", "roe/file/activate"),
    ("store/erase-rekey/committed", "erase/destroy"),
    ("roe/file/destroy-sync", "roe/file/activate"),
    ("roe/file/destroy-write", "roe/file/destroy-sync"),
    ("erase/destroyed", "store/erase-destroyed/commit"),
    ("erase/purged", "store/erase-verified/committed"),
    ("erase/destroyed", "audit/anchor/write"),
    ("audit/anchor/write", "audit/anchor/written"),
    ("store/certificate/committed", "store/bundle/commit"),
)

# At the very first start. Whoever starts it the second time must not notice.
FIRST_START = (
    "tier/nvme/arena-rename", "roe/file/format-size", "roe/file/format-header", "roe/file/create-write",
    "roe/file/create-done", "roe/file/activate", "roe/file/activated", "sign/create/write", "sign/create/sync",
    "sign/create/link", "sign/create/linked", "audit/journal/begin", "audit/journal/begun", "store/migrate/commit",
    "store/migrate/committed", "store/cluster/commit", "store/cluster/committed", "store/lease-join/commit",
    "store/lease-join/committed", "store/first-root/commit", "store/first-root/committed", "store/key-create/commit",
    "store/key-create/committed",
)
