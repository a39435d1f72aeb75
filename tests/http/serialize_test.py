"""PostgreSQL asks every transaction once to be run again (40001): nobody who calls notices, whatever had been done by
then."""
import json
import re
import signal
import unittest
from pathlib import Path

import rig
import transfer_test

AT_ONCE = 24  # fault points that a build takes, with room


def transactions(source):
    """The names of all transactions of the server."""
    return re.findall(r'^KV_TX\(\w+, "([a-z-]+)"\)$', Path(source, "server/store/tx.def").read_text(), re.M)


class Again:
    """Mixed in before a suite."""
    names = ()

    @classmethod
    def setUpClass(cls):
        points = [f"store/{name}/serialize=fail@1once" for name in cls.names] + ["service/alive=dead"]
        cls.environment = {"KVRUN_FAULT": ",".join(points)}
        super().setUpClass()
        assert not [line for line in cls.server.log if "spec_rejected" in line]
        since = len(cls.server.log)
        cls.server.process.send_signal(signal.SIGUSR1)
        status = rig.wait_for("a status", lambda: [json.loads(line) for line in cls.server.log[since:]
                                                   if '"event":"status"' in line])[0]
        if status["alive"]:
            cls.tearDownClass()
            raise unittest.SkipTest("a release build has no fault points")


def load_tests(loader, _tests, pattern):
    names = transactions(rig.options.source)
    assert len(names) > 50, names
    suite = unittest.TestSuite()
    for first in range(0, len(names), AT_ONCE):
        part = type(f"Again{first}", (Again, transfer_test.Transfers), {"names": names[first:first + AT_ONCE]})
        suite.addTests(loader.loadTestsFromTestCase(part))
    return suite


if __name__ == "__main__":
    rig.main(__name__)
