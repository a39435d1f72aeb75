#!/usr/bin/env python3
"""Writes a Llama model with random weights as a GGUF file: right in shape, size and arithmetic, meaningless in content.

The tests need a real engine whose KV cache has a known size per token; they do not need it to say anything sensible. The same
seed and size give the same bytes on every machine, and only the standard library is used. It must never be taken for a model that
was trained on anything.

    make_model.py --size small model.gguf      4 layers, width 256:   4 KiB of KV a token, about 6 MB
    make_model.py --size large model.gguf     16 layers, width 512:  32 KiB of KV a token, about 85 MB
"""
import argparse
import array
import math
import os
import random
import struct
import sys
from collections import namedtuple

ALIGNMENT = 32
F32, F16 = 0, 1  # tensor types of the format
NOISE_VALUES = 1 << 16

Shape = namedtuple("Shape", "layers width heads kv_heads ff context")
SIZES = {
    "small": Shape(layers=4, width=256, heads=4, kv_heads=4, ff=512, context=65536),
    "large": Shape(layers=16, width=512, heads=8, kv_heads=8, ff=1024, context=65536),
}
Tensor = namedtuple("Tensor", "name dims type")


def head_width(shape):
    return shape.width // shape.heads


def kv_bytes_per_token(shape):
    """K and V of every layer, 16 bits an element."""
    return 2 * shape.layers * shape.kv_heads * head_width(shape) * 2


class Metadata:
    """The typed key-value section of the header."""

    CODES = {"u32": (4, "<I"), "f32": (6, "<f"), "i32": (5, "<i")}
    STRING, ARRAY = 8, 9

    def __init__(self):
        self.count = 0
        self.data = bytearray()

    @staticmethod
    def string_bytes(text):
        raw = text.encode("utf-8")
        return struct.pack("<Q", len(raw)) + raw

    def _put(self, key, code, payload):
        self.data += self.string_bytes(key) + struct.pack("<I", code) + payload
        self.count += 1

    def number(self, key, kind, value):
        code, form = self.CODES[kind]
        self._put(key, code, struct.pack(form, value))

    def string(self, key, value):
        self._put(key, self.STRING, self.string_bytes(value))

    def numbers(self, key, kind, values):
        code, form = self.CODES[kind]
        body = b"".join(struct.pack(form, value) for value in values)
        self._put(key, self.ARRAY, struct.pack("<IQ", code, len(values)) + body)

    def strings(self, key, values):
        body = b"".join(self.string_bytes(value) for value in values)
        self._put(key, self.ARRAY, struct.pack("<IQ", self.STRING, len(values)) + body)


def vocabulary():
    """Three control tokens and one token a byte: (text, score, type) each. Byte b is token 3 + b."""
    control = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    return control + [("<0x%02X>" % byte, 0.0, 6) for byte in range(256)]


def metadata(shape, tokens):
    meta = Metadata()
    meta.string("general.architecture", "llama")
    meta.string("general.name", "kvrun random weights")
    meta.number("general.file_type", "u32", 1)
    numbers = {
        "context_length": shape.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.ff,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "rope.dimension_count": head_width(shape),
        "vocab_size": len(tokens),
    }
    for key, value in numbers.items():
        meta.number("llama." + key, "u32", value)
    meta.number("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5)
    meta.number("llama.rope.freq_base", "f32", 500000.0)
    meta.string("tokenizer.ggml.model", "llama")
    meta.strings("tokenizer.ggml.tokens", [text for text, _, _ in tokens])
    meta.numbers("tokenizer.ggml.scores", "f32", [score for _, score, _ in tokens])
    meta.numbers("tokenizer.ggml.token_type", "i32", [kind for _, _, kind in tokens])
    for position, name in enumerate(("unknown", "bos", "eos")):
        meta.number("tokenizer.ggml.%s_token_id" % name, "u32", position)
    return meta


def tensors(shape, vocab_size):
    query = head_width(shape) * shape.heads
    key_value = head_width(shape) * shape.kv_heads
    yield Tensor("token_embd.weight", (shape.width, vocab_size), F16)
    yield Tensor("output_norm.weight", (shape.width,), F32)
    yield Tensor("output.weight", (shape.width, vocab_size), F16)
    for layer in range(shape.layers):
        name = "blk.%d.%%s.weight" % layer
        yield Tensor(name % "attn_norm", (shape.width,), F32)
        yield Tensor(name % "ffn_norm", (shape.width,), F32)
        yield Tensor(name % "attn_q", (shape.width, query), F16)
        yield Tensor(name % "attn_k", (shape.width, key_value), F16)
        yield Tensor(name % "attn_v", (shape.width, key_value), F16)
        yield Tensor(name % "attn_output", (query, shape.width), F16)
        yield Tensor(name % "ffn_gate", (shape.width, shape.ff), F16)
        yield Tensor(name % "ffn_up", (shape.width, shape.ff), F16)
        yield Tensor(name % "ffn_down", (shape.ff, shape.width), F16)


def tensor_bytes(tensor):
    return math.prod(tensor.dims) * (4 if tensor.type == F32 else 2)


def padding(length):
    return -length % ALIGNMENT


def tensor_directory(all_tensors):
    body, offset = bytearray(), 0
    for tensor in all_tensors:
        body += Metadata.string_bytes(tensor.name) + struct.pack("<I", len(tensor.dims))
        body += b"".join(struct.pack("<Q", dim) for dim in tensor.dims)
        body += struct.pack("<IQ", tensor.type, offset)
        offset += tensor_bytes(tensor) + padding(tensor_bytes(tensor))
    return bytes(body)


class Weights:
    """Normal noise, drawn once and read from a random place for each stretch: fast, and no two layers are alike."""

    def __init__(self, shape, seed):
        self.random = random.Random(seed)
        scale = 1.0 / math.sqrt(shape.width)
        # gauss() is made of sums here: sin and cos may differ in the last bit between machines, these do not.
        values = [self._noise() * scale for _ in range(NOISE_VALUES)]
        self.noise = struct.pack("<%de" % NOISE_VALUES, *values)

    def _noise(self):
        return sum(self.random.random() for _ in range(12)) - 6.0

    def write(self, tensor, target):
        left = tensor_bytes(tensor)
        if tensor.type == F32:
            target.write(array.array("f", [1.0]).tobytes() * math.prod(tensor.dims))
            return
        while left > 0:
            start = 2 * self.random.randrange(NOISE_VALUES)
            piece = (self.noise[start:] + self.noise[:start])[:left]
            target.write(piece)
            left -= len(piece)


def write_model(path, shape, seed):
    tokens = vocabulary()
    meta = metadata(shape, tokens)
    all_tensors = list(tensors(shape, len(tokens)))
    weights = Weights(shape, seed)
    unfinished = path + ".part"
    with open(unfinished, "wb") as target:
        target.write(b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), meta.count))
        target.write(meta.data)
        target.write(tensor_directory(all_tensors))
        target.write(b"\0" * padding(target.tell()))
        for tensor in all_tensors:
            weights.write(tensor, target)
            target.write(b"\0" * padding(tensor_bytes(tensor)))
    os.replace(unfinished, path)


def main():
    parser = argparse.ArgumentParser(description="Write a Llama GGUF with random weights.")
    parser.add_argument("path")
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if sys.byteorder != "little":
        parser.error("this machine is big-endian; the format is little-endian")
    shape = SIZES[arguments.size]
    write_model(arguments.path, shape, arguments.seed)
    print("%s: %s, %d bytes of KV a token" % (arguments.path, arguments.size, kv_bytes_per_token(shape)))


if __name__ == "__main__":
    main()
