"""What HMAC keeps instead of its key: the state of SHA-256 or SHA-512 after the block of the inner and of the outer key. Whoever has
both computes with the key."""
import hashlib
import hmac
import struct


def fractions(power, count, bits):
    """The first bits behind the point of the roots of the first primes, FIPS 180-4 sections 4.2 and 5.3."""
    primes = [n for n in range(2, 420) if all(n % p for p in range(2, int(n ** 0.5) + 1))][:count]

    def root(n):  # the largest whole r with r ** power <= n << (power * bits)
        low, high = 0, 1 << (bits + 10)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle ** power <= n << (power * bits) else (low, middle - 1)
        return low

    return [root(n) & ((1 << bits) - 1) for n in primes]


class Hash:
    def __init__(self, name, bits, rounds, turns):
        self.name, self.bits, self.block, self.turns = name, bits, bits * 2, turns
        self.mask = (1 << bits) - 1
        self.words = "Q" if bits == 64 else "I"
        self.constants, self.start = fractions(3, rounds, bits), fractions(2, 8, bits)

    def turned(self, x, by, last_shifts=False):
        out = 0
        for i, n in enumerate(by):
            out ^= x >> n if last_shifts and i == 2 else (x >> n | x << (self.bits - n)) & self.mask
        return out

    def after(self, block, state=None):
        """The state after one block."""
        state = state or self.start
        w = list(struct.unpack(f">16{self.words}", block))
        small0, small1, big0, big1 = self.turns
        for i in range(16, len(self.constants)):
            w.append((w[i - 16] + self.turned(w[i - 15], small0, True) + w[i - 7] + self.turned(w[i - 2], small1, True)) & self.mask)
        a, b, c, d, e, f, g, h = state
        for k, x in zip(self.constants, w):
            first = h + self.turned(e, big1) + (e & f ^ ~e & self.mask & g) + k + x
            second = self.turned(a, big0) + (a & b ^ a & c ^ b & c)
            a, b, c, d, e, f, g, h = (first + second) & self.mask, a, b, c, (d + first) & self.mask, e, f, g
        return [(x + y) & self.mask for x, y in zip(state, (a, b, c, d, e, f, g, h))]

    def midstates(self, key):
        """(name, the words as a processor holds them) of the inner and the outer key."""
        for label, mask in (("ipad", 0x36), ("opad", 0x5C)):
            block = bytes(byte ^ mask for byte in key.ljust(self.block, b"\0"))
            yield f"{label}.{self.name}", struct.pack(f"<8{self.words}", *self.after(block))


HASHES = (Hash("sha256", 32, 64, ((7, 18, 3), (17, 19, 10), (2, 13, 22), (6, 11, 25))),
          Hash("sha512", 64, 80, ((1, 8, 7), (19, 61, 6), (28, 34, 39), (14, 18, 41))))


def midstates(key):
    for kind in HASHES:
        yield from kind.midstates(key)


def self_test():
    """From the states, without the key, the MAC that the library computes with it."""
    key, text = bytes(range(32)), b"message"
    for kind in HASHES:
        found = dict(kind.midstates(key))
        states = [list(struct.unpack(f"<8{kind.words}", found[f"{pad}.{kind.name}"])) for pad in ("ipad", "opad")]
        for state in states:
            bits = 8 * (kind.block + len(text))
            block = (text + b"\x80").ljust(kind.block - 8, b"\0") + bits.to_bytes(8, "big")
            text = struct.pack(f">8{kind.words}", *kind.after(block, state))
        assert text == hmac.new(key, b"message", getattr(hashlib, kind.name)).digest(), kind.name
        text = b"message"


self_test()
