"""Fault points where a round may kill the server, with the highest passing at which it still is likely to come by."""

TIER_STEPS = ("data-write", "data-sync", "log-write", "log-sync")
GENERATION_STEPS = ("ckpt-write", "ckpt-sync", "newlog-write", "newlog-sync", "folder-sync", "ckpt-rename", "renamed-sync")

DATA_POINTS = {
    **{f"tier/nvme/{step}": 25 for step in TIER_STEPS},
    **{f"tier/nvme/{step}": 1 for step in GENERATION_STEPS},
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

ERASE_STEPS = ("requested", "fenced", "staged", "rekeyed", "destroy", "destroyed", "purged", "verified", "certificate",
               "certified")
ROOT_STEPS = ("create-write", "create-done", "activate", "activated", "destroy-write", "destroy-sync")
TRANSACTIONS = ("erase-request", "erase-take", "erase-fenced", "erase-staged", "erase-rekey", "erase-destroyed",
                "erase-purged", "erase-check-slots", "erase-verified", "erase-batch-done", "certificate", "bundle")

ERASE_POINTS = {
    **{f"erase/{step}": 3 for step in ERASE_STEPS},
    **{f"roe/file/{step}": 3 for step in ROOT_STEPS},
    **{f"store/{name}/{step}": 3 for name in TRANSACTIONS for step in ("commit", "committed")},
}
