"""What JSON allows, what it does not, and what parsers disagree about: each case in a body that is else complete.

The cases follow "Parsing JSON is a minefield" (JSONTestSuite); where the suite leaves it open (`i_`), the answer here is
the strict one. Every answer is 201 or 400, and none but those of good bodies leaves a session behind.
"""
import json

import rig

# As the value of a text member: good ones.
GOOD = [
    b'"x"', b'"\\u0041"', b'"\\"\\\\\\/"', b'"\xc3\xa4"', b'"\\u00e4"', b'"\\ud83e\\udd8a"', b'"\xf0\x9f\xa6\x8a"',
    b'"\\uFFFF"', b'"\xef\xbf\xbf"', b'"\xe2\x80\xa8"', b'"\\u2028"', b'"asd "', b'" "', b'"// no comment"',
    b'"/* no comment */"', b'"\xd7\x9e\xd7\xa8"', b'"\xe2\x80\xaeabc"', b'"_default"', b'"a/b"', b'".."', b'"null"',
]
# As the value of a text member: refused.
BAD = [
    # numbers and words that are none
    b"-", b"+1", b"01", b"-01", b"1.", b".1", b"1e", b"1e+", b"0x1", b"1_000", b"Infinity", b"-Infinity", b"NaN", b"-NaN",
    b"1eE2", b"1 2", b"\xef\xbc\x91", b"tru", b"True", b"nul", b"truth", b"undefined",
    # of another type
    b"1", b"-0", b"1.0", b"1e400", b"1e-400", b"123456789012345678901234567890", b"true", b"null", b"[]", b"{}", b'["x"]',
    # texts that are none
    b"x", b"'x'", b'"', b'"x', b'"\\x"', b'"\\u00"', b'"\\u00zz"', b'"\\"', b'"\\\\\\"', b'"\\a"', b'"\\0"', b'"\\u{41}"',
    b'"\\U0041"', b'"a\nb"', b'"a\tb"', b'"a\x00b"', b'"a\x1fb"', b'"\\u0000"', b'"\\n"', b'"\\u001f"', b'"\x7f"',
    # surrogates and bytes that are no UTF-8
    b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"', b'"\\ud800\\ud800"', b'"\\udd8a\\ud83e"', b'"\\ud800x"',
    b'"\xff"', b'"\xc0\x80"', b'"\xc0\xaf"', b'"\xe0\x80\xaf"', b'"\xed\xa0\x80"', b'"\xed\xa0\xbe\xed\xb6\x8a"',
    b'"\xf0\x80\x80\xaf"', b'"\xf4\x90\x80\x80"', b'"\xf5\x80\x80\x80"', b'"\xc3"', b'"\x80"', b'"\xe4"', b'"\xfe\xff"',
    # punctuation
    b'"x",', b'"x":', b'"x" "y"', b'"x"}', b'"x"]', b'"x"/**/', b'/**/"x"', b'"x" // y', b'"x" # y', b',"x"', b"",
    b'["x",]', b'["x"', b'{"a":"x",}', b'{"a" "x"}', b'{a:"x"}', b'{"a":"x"', b'{1:1}', b'{"a":1,"a":1}', b"\xa0\"x\"",
    b"\x0c\"x\"", b"\xe2\x81\xa0\"x\"", b'\xef\xbb\xbf"x"', b'"x"\x00',
]
# Whole bodies: refused.
WHOLE = [
    b"", b" ", b"\n", b"null", b"true", b"1", b'"x"', b"[]", b"[[]]", b"{", b"}", b"{}{}", b"{}x", b"{} []", b"[1]",
    b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{\x00}\x00", b"\x00{\x00}", b"\x00", b"{}\x00", b"\x1a{}", b"<!-- -->",
    b"[" * 100000, b'{"a":' * 100000, b"[" * 17 + b"]" * 17, b'{"":' * 16 + b"1" + b"}" * 16,
]


class Minefield(rig.Suite):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tenant = cls.server.tenant("minefield")
        cls.key = cls.server.key(cls.tenant, "engine")

    def setUp(self):
        self.before = self.sessions()

    def sessions(self):
        return int(self.server.database("SELECT count(*) FROM session"))

    def post(self, body):
        return self.server.call("POST", "/v1/sessions", self.key, body)

    @staticmethod
    def body(value):
        return b'{"model":{"id":' + value + b',"revision":"r"}}'

    def test_what_is_json_is_taken_as_it_is(self):
        for value in GOOD:
            answer = self.post(self.body(value))
            self.assertEqual(answer.status, 201, value)
            self.assertEqual(answer.json()["model"]["id"], json.loads(value), value)
        self.assertEqual(self.sessions(), self.before + len(GOOD))

    def test_what_is_none_is_refused_and_makes_nothing(self):
        for value in BAD:
            answer = self.post(self.body(value))
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), value)
        self.assertEqual(self.sessions(), self.before)

    def test_whole_bodies_that_are_no_object_are_refused(self):
        for body in WHOLE:
            answer = self.post(body)
            self.assertEqual((answer.status, answer.code), (400, "invalid_request"), body[:40])
        self.assertEqual(self.sessions(), self.before)

    def test_blanks_are_where_json_has_them(self):
        for blank in (b" ", b"\t", b"\r\n", b" \n\t "):
            body = blank.join([b"", b"{", b'"model"', b":", b"{", b'"id"', b":", b'"x"', b",", b'"revision"', b":", b'"r"',
                               b"}", b"}", b""])
            self.assertEqual(self.post(body).status, 201, blank)


if __name__ == "__main__":
    rig.main(__name__)
