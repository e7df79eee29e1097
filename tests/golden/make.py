#!/usr/bin/env python3
"""Makes the golden frames with the reference encoder, never with the library, and writes what they decode to.

    make.py                       writes frames/*.frame, manifest.tsv, encode.tsv, patches.tsv and patch_histories.tsv
    make.py --check               compares them with what is there (a test does)
    make.py --library FILE        also rewrites those of the library: frames/library_*.frame, library.tsv

manifest.tsv: name, status of decode, who notices ("inspect" or "decode"), tag, what it decodes to, why it is here.
patch_histories.tsv: of some of these patches, the histories that sender and receiver have, in hexadecimal.
patches.tsv:  name, status, who notices, what the receiver has, what it assigns, the plan by which the library encodes these bytes ("-": its bytes are
              others), why.
encode.tsv:   name of the frame that the library must encode byte for byte, plan, call, tensors.
A tensor is `type ROWSxWIDTH index:value,value …`, values as bit patterns; `index+n:value` are n equal rows from there on; of inputs the first word
says dense or sparse.
Frames with Deflate are made by hand (stored blocks) or frozen here as hex, since zlib's bytes depend on its version.
"""
import argparse
import functools
import itertools
import math
import random
import struct
import sys
from dataclasses import replace
from pathlib import Path

here = Path(__file__).parent
sys.path.insert(0, str(here.parent / "reference"))
sys.dont_write_bytecode = True
import decoder  # noqa: E402
import encoder  # noqa: E402
from decoder import LIST, MASK32, MASK64, PHI, SHORT, Corrupt, Shape, Unsupported, decode_frame, is_fixed, mix64, murmur3, to_double  # noqa: E402
from encoder import (EncodedRow, encode, encode_row, entry, entry_bytes, general_frame, pack_bits, seal, short_frame, stage,  # noqa: E402
                     status_frame, varint)

frames: dict = {}
manifest: list = []
encodes: list = []
patches: list = []
histories: list = []
limit = 2048


def tensor_text(t):
    cells, rows = [], [t.values[k * t.width:(k + 1) * t.width] for k in range(len(t.indices))]
    for row, run in itertools.groupby(range(len(rows)), key=rows.__getitem__):
        run = [t.indices[k] for k in run]
        value = ",".join(f"{v:x}" for v in row)
        together = len(run) >= 1000 and run[-1] - run[0] == len(run) - 1
        cells += [f"{run[0]}+{len(run)}:{value}"] if together else [f"{i}:{value}" for i in run]
    return " ".join([f"{t.dtype} {t.universe}x{t.width}", *cells])


def add(name, why, data, *row):
    assert name not in frames, name
    assert len(data) < limit, (name, len(data))
    frames[name] = data
    manifest.append([name, *row, why])


def good(name, why, data, table=None):
    """A frame that decodes to the result of the reference decoder."""
    f = decode_frame(data)
    assert f.size == len(data), name
    tag = "-" if f.tag is None else str(f.tag)
    if f.status:
        add(name, why, data, "PEER", "decode", tag, f.message)
    else:
        add(name, why, data, "OK", "-", tag, " | ".join(map(tensor_text, f.tensors)) or "-")


def bad(name, why, data, noticed="inspect", status="CORRUPT"):
    """Must fail. noticed: by inspect, which judges headers and checks, or only by decode."""
    if status in ("CORRUPT", "UNSUPPORTED"):
        try:
            decode_frame(data)
            raise AssertionError(f"{name}: the reference decoder takes it")
        except (Corrupt if status == "CORRUPT" else Unsupported) as error:
            assert "check of" not in str(error) or "check" in name, f"{name}: refused for its check: {error}"
    add(name, why, data, status, noticed, "-", "-")


# ---- values: bit patterns, the same on every machine -----------------------------------------------------

def patterns(n, seed, dtype="f32"):
    """Finite values of many magnitudes and both signs."""
    r = random.Random(seed)
    if dtype == "f32":
        return [r.getrandbits(1) << 31 | r.randrange(0x74, 0x7c) << 23 | r.getrandbits(23) for _ in range(n)]
    if dtype == "bf16":
        return [r.getrandbits(1) << 15 | r.randrange(0x74, 0x7c) << 7 | r.getrandbits(7) for _ in range(n)]
    return [r.getrandbits(1) << 15 | r.randrange(6, 14) << 10 | r.getrandbits(10) for _ in range(n)]


def sample(universe, count, seed=1, dtype="f32", width=1):
    keys = sorted(random.Random(seed).sample(range(universe), count))
    values = patterns(count * width, seed, dtype)
    return {k: values[i * width:(i + 1) * width] for i, k in enumerate(keys)}


ONE, TWO, HALF, MINUS = 0x3f800000, 0x40000000, 0x3f000000, 0xbf800000
RAW, KEYS, PACK, DEFLATE = stage("value", "raw"), stage("index", "raw"), stage("order", "bitpack"), stage("bytes", "deflate")
GOLOMB, RICE, FIT, QSGD = stage("index", "golomb"), stage("index", "rice"), stage("value", "fit_poly"), stage("value", "qsgd")
JUMP = stage("value", "fit_poly", knots=2)
PLAIN = entry("f32", [RAW], [KEYS])
SIX = {3: [ONE], 17: [TWO], 18: [HALF], 40: [MINUS], 41: [0x80000000], 99: [0x7fc00001]}


def values_index(value, index, dtype="f32", **more):
    return entry(dtype, [value], [index], **more)


def stored(data):
    """Raw Deflate of one stored block: the same bytes everywhere."""
    return b"\x01" + struct.pack("<HH", len(data), len(data) ^ 0xffff) + data


# ---- the container ---------------------------------------------------------------------------------------

def container():
    good("empty_batch", "a frame of no tensor", general_frame([]))
    good("empty_tensor", "a tensor of no element", encode([(0, {})], PLAIN))
    good("all_zeros", "a tensor of which nothing is sent", encode([(1000, {})], values_index(RAW, GOLOMB)))
    good("list_of_none", "an empty list, marked as such", general_frame([], LIST))
    good("worked_example", "FORMAT.md's", encode([(1000, {3: [ONE], 17: [0xc0200000], 18: [HALF], 250: [0x40400000], 999: [0xbe800000]})], values_index(RAW, GOLOMB)))
    good("short_plain", "the short form", encode([(100, SIX)], PLAIN))
    good("short_list", "the short form, marked as a list", encode([(100, SIX)], PLAIN, is_list=True))
    good("short_wide_sizes", "the short form with sizes of three bytes", short_frame(encode_row(values_index(RAW, GOLOMB), 100, SIX), size_bytes=3))
    good("short_long_header", "a short header of more than 28 bytes: a reader takes any length",
         short_frame(encode_row(entry("f32", [RAW, DEFLATE], [KEYS, DEFLATE]), 100, {})))
    good("general_one_row", "the general form of one row: one check over all", encode([(100, SIX)], PLAIN, short=False))
    good("tagged", "a tag", encode([(100, SIX)], PLAIN, tag=0x1122334455667788))
    good("tag_zero", "a tag that is zero is a tag", encode([(100, SIX)], PLAIN, tag=0))
    good("tag_largest", "a tag of 64 ones", encode([(100, SIX)], PLAIN, tag=MASK64))
    good("batch_of_three", "three tensors by one plan, one of them empty", encode([(100, SIX), (0, {}), (7, {6: [TWO]})], PLAIN))
    half, rows = entry("f16", [QSGD], [KEYS]), entry("bf16", [RAW], [GOLOMB], width=3)
    good("three_plans", "each tensor by a plan of its own: type, width and codecs differ",
         general_frame([encode_row(PLAIN, 100, SIX), encode_row(half, 50, sample(50, 9, 2, "f16")), encode_row(rows, 20, sample(20, 5, 3, "bf16", 3)), encode_row(PLAIN, 5, {})]))
    good("unused_plan", "a plan that no row names", general_frame([encode_row(PLAIN, 100, SIX)], plan=entry_bytes(PLAIN) + entry_bytes(half)))
    good("unused_plans", "300 plans, of which a row names one and another the last but one", general_frame(
        [encode_row(PLAIN, 100, SIX), encode_row(half, 50, sample(50, 9, 2, "f16"))], plan=(entry_bytes(PLAIN) * 7 + entry_bytes(half)) * 30 + entry_bytes(PLAIN),
        info=[100 << 3, 239 << 3], widths=[2, 1, 1, 0, 0, 0, 0, 0]))
    bad("unused_plan_broken", "a plan that no row names, and that nobody could read", general_frame([encode_row(PLAIN, 100, SIX)], plan=entry_bytes(PLAIN) + bytes.fromhex("09 00 02 02")))
    good("wide_columns", "columns of eight bytes: a reader takes any width", general_frame([encode_row(values_index(RAW, GOLOMB), 100, SIX)] * 2, widths=[2, 8, 8, 0, 8, 8, 8, 0]))
    good("no_count_column", "no count column: all rows are empty", general_frame([encode_row(PLAIN, 9, {})] * 2, widths=[1, 1, 0, 0, 0, 0, 0, 0]))
    good("segments", "one tensor in segments of 30", encode([(100, SIX)], values_index(RAW, GOLOMB), segment=30))
    good("segments_of_two_plans", "segments may differ in codecs", general_frame(
        [encode_row(PLAIN, 60, {3: [ONE]}), encode_row(values_index(QSGD, RICE), 40, {1: [TWO], 7: [HALF]}, continues=True), encode_row(PLAIN, 5, {0: [ONE]})]))
    far = general_frame([encode_row(PLAIN, MASK32, {0: [ONE], MASK32 - 1: [TWO]}), encode_row(PLAIN, MASK32, {5: [HALF]}, continues=True),
                         encode_row(PLAIN, 7, {6: [MINUS]}, continues=True)])
    good("beyond_32_bits", "a tensor of 2^33 + 5 elements in three segments", far)
    good("largest_row", "a row of 2^32 - 1 elements, its last one sent, by golomb", general_frame([encode_row(values_index(RAW, GOLOMB), MASK32, {7: [ONE], MASK32 - 1: [TWO]})]))
    for name, e in (("short_dense_mode", PLAIN), ("dense_mode_replacing", values_index(RAW, stage("index", "bloom", k=2, c=262144)))):
        good(name, "mode 2: the dense row itself, -0 and NaN kept", short_frame(encode_row(e, 6, {0: [0x80000000], 3: [0x7f800001], 5: [ONE]}, 2)))
    bloom = values_index(RAW, stage("index", "bloom", policy=1, k=2, c=262144))
    good("raw_index_mode", "mode 1: raw keys instead of a filter", short_frame(encode_row(bloom, 64, {5: [ONE], 17: [TWO], 40: [HALF]}, 1)))
    good("three_modes", "one plan, a row in each mode", general_frame([encode_row(bloom, 64, {5: [ONE], 17: [TWO], 40: [HALF]}, mode) for mode in (0, 1, 2)]))
    good("status", "a rank that could not encode", status_frame(1, b"tensor 0, value stream (qsgd): the gradient is NaN"))
    good("status_tagged", "with a tag", status_frame(5, b"out of memory", tag=42))
    good("status_no_words", "without a word", status_frame(7, b""))
    good("status_longest", "the longest message, and not ASCII", status_frame(2, ("é" * 127 + ".").encode()))

    plain = short_frame(encode_row(PLAIN, 100, SIX))
    two = [encode_row(PLAIN, 100, SIX), encode_row(PLAIN, 50, {7: [ONE]})]
    sealed = functools.partial(seal, whole=False)
    bad("magic", "it begins with DX", short_frame(encode_row(PLAIN, 100, SIX), magic=b"DX"))
    bad("version_0", "a version from before the first", short_frame(encode_row(PLAIN, 100, SIX), version=0), status="UNSUPPORTED")
    bad("version_255_general", "a much newer version", general_frame(two, version=255), status="UNSUPPORTED")
    bad("cut_in_magic", "11 bytes", plain[:11])
    bad("cut_in_header", "cut off in the header", plain[:20])
    bad("cut_in_payload", "cut off in the payload", plain[:-1])
    bad("check_short", "a flipped bit of a payload: the check differs", plain[:-1] + bytes([plain[-1] ^ 1]))
    bad("check_row", "a row's check differs, the header's is right", general_frame(two, checks=[1, 2]))
    bad("check_of_header", "a flipped bit in a tag: the header's check differs", (lambda f: f[:25] + bytes([f[25] ^ 8]) + f[26:])(encode([(9, {})] * 2, PLAIN, tag=3)))
    bad("check_whole_of_several", "several rows, but the header's check covers the payloads", general_frame(two, whole=True))
    bad("flag_short_tag", "a short frame with a tag", short_frame(encode_row(PLAIN, 100, SIX), flags=3))
    bad("flag_short_status", "a short status frame", short_frame(encode_row(PLAIN, 100, SIX), flags=9))
    bad("flag_7", "a reserved flag", short_frame(encode_row(PLAIN, 100, SIX), flags=129))
    bad("flag_mode_in_general", "mode bits in the general form", general_frame(two, flags=16))
    bad("flag_small_in_general", "the flag of small sizes in the general form", general_frame(two, flags=64))
    bad("byte_17", "a reserved byte", general_frame(two, zero=1))
    bad("mode_3_short", "mode 3", short_frame(encode_row(PLAIN, 100, SIX), flags=1 | 48), status="UNSUPPORTED")
    bad("mode_3_general", "mode 3", general_frame(two, info=[3, 0]), status="UNSUPPORTED")
    bad("header_padding", "padding of the header", short_frame(encode_row(PLAIN, 100, SIX), behind=b"\1"))
    bad("header_padding_general", "padding of the header", general_frame(two, behind=b"\1"))
    bad("payload_padding", "padding behind a payload", short_frame(replace(encode_row(entry("f16", [RAW], [KEYS]), 100, {1: [2]}), payload=bytes.fromhex("0200 01000000 0100"))))
    bad("count_above_universe", "more elements than there are", short_frame(replace(encode_row(PLAIN, 100, SIX), universe=5)))
    bad("universe_2_32", "a row of 2^32 elements", general_frame([replace(encode_row(PLAIN, 100, {}), universe=2**32)]))
    bad("universe_2_63", "a row of 2^63 elements", general_frame([replace(encode_row(PLAIN, 100, {}), universe=2**63)]))
    bad("rows_beyond", "more rows than the frame has bytes", general_frame(two, n_rows=MASK32))
    bad("width_of_info_0", "a row info column of no byte", general_frame(two, widths=[0, 1, 1, 0, 0, 0, 0, 0]))
    bad("width_of_info_3", "a row info column of three", general_frame([], widths=[3, 1, 1, 0, 0, 0, 0, 0]))
    bad("width_of_universe_0", "a universe column of no byte", general_frame(two, widths=[1, 0, 1, 0, 0, 0, 0, 0]))
    bad("width_9", "a column of nine bytes", general_frame([], widths=[1, 9, 1, 0, 0, 0, 0, 0]))
    bad("width_reserved", "the reserved width", sealed((lambda h: h[:23] + bytes([h[23] | 0x10]) + h[24:])(general_frame([]))))
    bad("support_column_missing", "a filter, but no support column", general_frame([encode_row(bloom, 64, {5: [ONE]}, 1)] * 2, widths=[1, 1, 1, 0, 0, 0, 0, 0]))
    bad("support_column_in_excess", "a support column, but nothing replaces the support", general_frame(two, widths=[1, 1, 1, 1, 0, 0, 0, 0]))
    bad("entry_past_table", "a row names a plan that is not there", general_frame(two, info=[8, 0]))
    bad("no_plan_table", "rows, but no plan", general_frame(two, plan=b""))
    bad("plan_breaks_off", "a plan table that ends in an entry", general_frame(two, plan=entry_bytes(PLAIN)[:-1]))
    bad("first_row_continues", "the first row continues", general_frame(two, info=[4, 0]))
    bad("segment_of_another_type", "a segment of another type", general_frame([encode_row(PLAIN, 9, {}), encode_row(entry("f16", [RAW], [KEYS]), 9, {}, continues=True)]))
    bad("segment_of_another_width", "a segment of another width", general_frame([encode_row(PLAIN, 9, {}), encode_row(entry("f32", [RAW], [KEYS], width=2), 9, {}, continues=True)]))
    bad("size_without_count", "an empty row stores a size", short_frame(replace(encode_row(values_index(RAW, GOLOMB), 100, {}), index=4, payload=bytes(4))))
    bad("size_in_mode_1", "a size of an index list that mode 1 does not use", short_frame(replace(encode_row(values_index(RAW, GOLOMB), 100, {3: [ONE]}, 1), index=4)))
    bad("size_in_mode_2", "a size in a dense row", short_frame(replace(encode_row(values_index(RAW, GOLOMB), 100, {3: [ONE]}, 2), index=4)))
    bad("size_of_fixed", "a size of a list of fixed size", general_frame([replace(encode_row(PLAIN, 100, SIX), value=24)]))
    bad("size_overflows", "sizes whose sum overflows 64 bits", general_frame([replace(encode_row(entry("f32", [RAW, DEFLATE], [GOLOMB]), 100, SIX), value=MASK64 - 8, index=MASK64 - 8)]))
    bad("support_differs", "a row whose list keeps the support stores another", general_frame([replace(encode_row(PLAIN, 100, SIX), support=5), encode_row(bloom, 64, {})]))
    bad("support_in_mode_2", "a stored support in a dense row", short_frame(replace(encode_row(bloom, 64, {}, 2), support=1)))
    bad("support_in_mode_1", "raw keys, but a support that is not their number", short_frame(replace(encode_row(bloom, 64, {3: [ONE]}, 1), support=2)))
    bad("support_without_count", "a support of nothing", short_frame(replace(encode_row(bloom, 64, {}), support=1)))
    bad("status_0", "the flag of a status frame without status", status_frame(0, b""))
    bad("status_8", "a status that nobody may send: PEER", status_frame(8, b""))
    bad("status_no_flag", "a status without its flag", general_frame(two, status=1))
    bad("status_rows", "a status frame with a row", status_frame(1, b"", n_rows=1))
    bad("status_widths", "a status frame with column widths", status_frame(1, b"", widths=[1] + [0] * 7))
    bad("status_too_long", "a message of 256 bytes", status_frame(1, b"x" * 256))
    bad("status_padding", "padding behind a message", status_frame(1, b"x", table_size=1, behind=b"\0\1"))

    def plan(data):
        return short_frame(encode_row(PLAIN, 100, SIX), plan=bytes.fromhex(data))
    bad("plan_no_value", "a plan without a value codec", plan("08 01 02"), status="UNSUPPORTED")
    bad("plan_no_index", "a plan without an index codec", plan("01 01 02"), status="UNSUPPORTED")
    bad("plan_6_values", "six codecs in a list", plan("0e 01 02 02 02 02 02 02 02"), status="UNSUPPORTED")
    bad("plan_type_0", "no type", plan("09 00 02 02"))
    bad("plan_type_4", "a type that carries no values", plan("09 04 02 02"), status="UNSUPPORTED")
    bad("plan_type_reserved", "a patch (once a reserved bit) without its checks", plan("09 41 02 02"))
    bad("plan_type_15", "the last of the types that nobody has yet", plan("09 0f 02 02"), status="UNSUPPORTED")
    bad("plan_type_bit_7", "the other reserved bit of the type", plan("09 81 02 02"), status="UNSUPPORTED")
    bad("plan_7_indices", "seven codecs in an index list", plan("39 01" + " 02" * 8), status="UNSUPPORTED")
    later = plan("09 04 02 02")
    bad("plan_type_4_damaged", "a type of a later version is said before any check is verified", later[:-1] + bytes([later[-1] ^ 1]), status="UNSUPPORTED")
    bad("plan_width_1", "a width of 1 is not written", plan("09 21 01 02 02"))
    bad("plan_width_2_32", "a width of 2^32", plan("09 21 80 80 80 80 10 02 02"))
    bad("plan_zero_group", "a varint with a superfluous zero group", plan("09 01 82 00 02"))
    bad("plan_varint_65_bits", "a varint of 65 bits", plan("09 21" + "80" * 9 + "02 02 02"))
    bad("plan_varint_11_bytes", "a varint of 11 bytes", plan("09 21" + "80" * 10 + "01 02 02"))
    bad("plan_order_carried_by_raw", "keys carry an order that there is not", plan("09 11 02 02"))
    bad("plan_order_carried_by_golomb", "golomb cannot carry the order", plan("09 11 06 04"))
    bad("plan_order_missing", "fit_poly without an order", plan("09 01 06 02"))
    bad("plan_order_in_excess", "an order for a codec that keeps it", plan("49 01 02 02 02"))
    bad("plan_fields_of_no_bytes", "wire fields of no byte", plan("09 01 02 05 00"))
    bad("plan_field_at_default", "a last field that equals its default", plan("09 01 02 05 01 0c"))
    bad("plan_field_too_many", "more fields than the codec has", plan("09 01 02 05 02 09 09"))
    bad("plan_field_of_raw", "a field of a codec that has none", plan("09 01 02 03 01 01"))
    bad("unknown_value_codec", "an id that nobody has", plan("09 01 fe ff 03 02"), status="UNSUPPORTED")
    bad("unknown_index_codec", "an id that nobody has", plan("09 01 02 fe ff 03"), status="UNSUPPORTED")
    bad("unknown_bytes_codec", "an id that nobody has", plan("0a 01 02 fe ff 03 02"), status="UNSUPPORTED")
    bad("unknown_large_id", "an id of 60 bits", plan("09 01 fe ff ff ff ff ff ff ff 0f 02"), status="UNSUPPORTED")
    huge = general_frame([EncodedRow(values_index(RAW, GOLOMB, width=2**32 - 1), 0, MASK32, MASK32, MASK32, index=4)])
    bad("size_beyond_64_bits", "values of 2^66 bytes", huge)
    claim = EncodedRow(entry("f16", [QSGD, DEFLATE], [GOLOMB]), 0, MASK32, 2**31, 2**31, value=8, index=8, payload=bytes(16))
    bad("claims_billions", "36 bytes that claim 2^31 elements: over any sensible limit", general_frame([claim]), "decode", "CAPACITY")


# ---- one codec at a time ---------------------------------------------------------------------------------

def index_frame(e, universe, count, payload, support=None):
    """A short frame of a written index section and values of zeros."""
    support = count if support is None else support
    data = bytes(decoder.VALUE_SIZE[e.dtype] * support) + payload
    return short_frame(EncodedRow(e, 0, universe, count, support, index=0 if decoder.is_fixed(e.index) else len(payload), payload=data + bytes(-len(data) % 4)))


def value_frame(stages, n, payload, dtype="f32", order=None, order_payload=b"", width=1, universe=100):
    """A short frame of a written value section at the indices 0 … n - 1."""
    e = entry(dtype, stages, [KEYS], order or [], width=width)
    data = payload + order_payload + struct.pack(f"<{n}I", *range(n))
    return short_frame(EncodedRow(e, 0, universe, n, n, value=0 if decoder.is_fixed(stages) else len(payload),
                                  order=0 if decoder.is_fixed(order or []) else len(order_payload), payload=data + bytes(-len(data) % 4)))


def index_raw():
    def keys(*numbers, universe=100):
        return index_frame(PLAIN, universe, len(numbers), struct.pack(f"<{len(numbers)}I", *numbers))

    carried = entry("f32", [FIT], [KEYS], carries=True)
    good("raw_first_and_last", "both ends of the universe", keys(0, 99))
    good("raw_carries_order", "keys in the order of the sorted values", encode([(100, SIX_FINITE)], carried))
    bad("raw_not_below", "a key that is the universe", keys(3, 100), "decode")
    bad("raw_largest", "a key of 2^32 - 1", keys(3, MASK32), "decode")
    bad("raw_twice", "a key twice", keys(3, 3), "decode")
    bad("raw_descends", "keys that do not ascend", keys(4, 3), "decode")
    row = encode_row(carried, 100, SIX_FINITE)
    bad("raw_carried_twice", "a key twice where the keys carry the order", short_frame(replace(row, payload=row.payload[:-4] + row.payload[-8:-4])), "decode")
    bad("raw_carried_not_below", "a key not below the universe where the keys carry the order", short_frame(replace(row, payload=row.payload[:-4] + b"\x64\0\0\0")), "decode")


SIX_FINITE = {3: [ONE], 17: [TWO], 18: [HALF], 40: [MINUS], 41: [0x80000000], 99: [0x40490fdb]}


def one_block(universe, end, body, clustered=0):
    """A payload of split Golomb or Rice of one block."""
    return varint(2 * (universe - end) + clustered) + body


def split(name, codec):
    e, small = entry("f16", [RAW], [stage("index", codec)]), entry("f16", [RAW], [stage("index", codec, block=9)])
    parameter = decoder.golomb_parameter if codec == "golomb" else decoder.rice_parameter

    def body(indices, base, end, clustered=False):
        m = parameter(end - base, len(indices))
        return encoder.encode_split_block(indices, base, decoder.clustered_parameter(m) if clustered else m)

    good(f"{name}_one_index", "one index, the first", encode([(1000, {0: [1]})], e))
    good(f"{name}_last_index", "one index, the last", encode([(1000, {999: [1]})], e))
    good(f"{name}_all", "every index: M = 1, one bit each", encode([(77, {i: [i + 1] for i in range(77)})], e))
    good(f"{name}_sparse", "100 of 100000", encode([(100000, sample(100000, 100, 4, "f16"))], e))
    good(f"{name}_two_clusters", "two clusters far apart", encode([(2**24 - 1, {**{i: [7] for i in range(20)}, **{2**23 + 3 * i: [9] for i in range(20)}})], e))
    good(f"{name}_universe_2_24", "the general form", encode([(2**24, {5: [1], 2**24 - 1: [2]})], e, short=False))
    good(f"{name}_512", "exactly one block of 512", encode([(3000, sample(3000, 512, 5, "f16"))], small))
    good(f"{name}_513", "two blocks, the second of one index", encode([(3000, sample(3000, 513, 6, "f16"))], small))
    good(f"{name}_two_densities", "two blocks with parameters of their own", encode([(200000, {**{i: [1] for i in range(512)}, 199999: [2]})], small))

    def frame(payload, universe=12, n=3, code=e):
        return index_frame(code, universe, n, payload)
    three = body([0, 2, 11], 0, 12)
    whole = one_block(12, 12, three)
    assert decode_frame(frame(whole)).tensors[0].indices == [0, 2, 11]
    good(f"{name}_end_below_universe", "a block that ends before the universe does", frame(one_block(40, 12, three), universe=40))
    bad(f"{name}_end_below_0", "a block that ends below 0", frame(varint(26) + three), "decode")
    bad(f"{name}_end_of_64_bits", "an end as far below 0 as a varint takes it", frame(varint(MASK64) + three), "decode")
    bad(f"{name}_end_zero_group", "a varint with a superfluous zero group", frame(b"\x80\x00" + three), "decode")
    bad(f"{name}_end_breaks_off", "a varint that breaks off", frame(b"\x80" * 3), "decode")
    bad(f"{name}_span_below_n", "a span shorter than its number of indices", frame(one_block(12, 2, three)), "decode")
    bad(f"{name}_byte_behind", "a body that is not used up", frame(whole + b"\0"), "decode")
    bad(f"{name}_byte_missing", "a body that breaks off", frame(whole[:-1]), "decode")
    bad(f"{name}_empty", "no payload at all for three indices", frame(b""), "decode")
    bad(f"{name}_no_ones", "a unary string without its ones", frame(one_block(12, 12, bytes(len(three)))), "decode")
    bad(f"{name}_short_of_end", "a block whose last index is not its end", frame(one_block(12, 12, body([0, 2, 10], 0, 12))), "decode")
    bad(f"{name}_past_end", "an index past the end of its block", frame(one_block(20, 12, body([0, 2, 13], 0, 12)), universe=20), "decode")
    bad(f"{name}_padding", "padding that is not zero", frame(whole[:-1] + bytes([whole[-1] | 0x80])), "decode")
    bad(f"{name}_block_8", "a block of 2^8", short_frame(encode_row(e, 100, {3: [1]}), plan=b"\x09\x02\x02" + bytes([5 if codec == "golomb" else 7, 1, 8])))
    bad(f"{name}_block_14", "a block of 2^14", short_frame(encode_row(e, 100, {3: [1]}), plan=b"\x09\x02\x02" + bytes([5 if codec == "golomb" else 7, 1, 14])))
    if codec == "golomb":
        good("golomb_clustered_chosen", "a clustered block where nobody asked for it", frame(one_block(1000, 1000, body([3, 17, 18, 150, 999], 0, 1000, True), 1), 1000, 5))
        bad("golomb_clustered_dense", "a clustered block whose M is 1 without it", frame(one_block(4, 4, body([0, 1, 3], 0, 4), 1), 4), "decode")
        bad("golomb_clustered_by_mistake", "a body that is not clustered, but marked so", frame(one_block(1000, 1000, body([3, 17, 18, 150, 999], 0, 1000), 1), 1000, 5), "decode")
    else:
        bad("rice_marked_clustered", "rice has no clustered blocks", frame(one_block(12, 12, three, 1)), "decode")

    def two(end0=512, size0=None, end1=601, size1=None, behind=b"", universe=1000):
        first, second = body(list(range(512)), 0, 512), body([600], 512, 601)
        table = struct.pack("<IHIH", end0, len(first) if size0 is None else size0, end1, len(second) if size1 is None else size1)
        return frame(table + first + second + behind, universe, 513, small)
    assert len(decode_frame(two()).tensors[0].indices) == 513
    bad(f"{name}_end_above_universe", "a block that ends above the universe", two(universe=600), "decode")
    bad(f"{name}_behind_bodies", "bytes behind the last body", two(behind=b"\0"), "decode")
    bad(f"{name}_body_past_payload", "a body longer than the payload", two(size1=60), "decode")
    bad(f"{name}_bodies_shifted", "bodies cut at the wrong byte", two(size0=63), "decode")
    bad(f"{name}_block_before_base", "a block that ends before the one before", two(end1=511), "decode")
    bad(f"{name}_empty_span", "a block of no span", two(end1=512), "decode")
    bad(f"{name}_table_cut", "a payload shorter than its table", frame(struct.pack("<IH", 512, 64), 1000, 513, small), "decode")


def bloom():
    def plan(**fields):
        return entry("f16", [RAW], [stage("index", "bloom", **fields)])

    keys = sample(400, 30, 8, "f16")
    good("bloom_leftmost", "leftmost: as many as went in", short_frame(encode_row(plan(k=3, c=262144), 400, {i: [i + 1] for i in range(400)}, indices=list(keys))))
    good("bloom_p0", "p0: all positives", short_frame(encode_row(plan(policy=1, k=3, c=262144), 400, {i: [i + 1] for i in range(400)}, indices=list(keys))))
    good("bloom_smallest_filter", "a filter of 32 bits", encode([(400, {7: [1]})], plan(policy=1, k=1, c=1)))
    good("bloom_64_hashes", "64 hashes", encode([(400, {7: [1], 300: [2]})], plan(policy=1, k=64, c=6500000)))
    good("bloom_seed_wraps", "a seed that wraps around 2^32", encode([(400, {7: [1], 300: [2]})], plan(policy=1, k=4, c=500000, seed=MASK32 - 1)))
    good("bloom_all_positive", "a filter of ones: p0 takes the universe", index_frame(plan(policy=1, c=65536), 40, 1, b"\xff" * 4, 40))
    good("bloom_leftmost_of_ones", "a filter of ones: leftmost takes the first", index_frame(plan(c=65536), 40, 20, b"\xff" * 4))
    bad("bloom_too_few", "leftmost: fewer positives than the count", index_frame(plan(k=1, c=65536), 40, 20, bytes(4)), "decode")
    bad("bloom_p0_fewer", "p0: the frame promises more positives than there are", index_frame(plan(policy=1, c=65536), 40, 20, b"\xff" * 3 + b"\x7f", 40), "decode")
    bad("bloom_p0_more", "p0: the frame promises fewer", index_frame(plan(policy=1, c=65536), 40, 20, b"\xff" * 4, 39), "decode")
    bad("bloom_leftmost_support", "leftmost: a support that is not the count", index_frame(plan(c=65536), 40, 20, b"\xff" * 4, 21), "decode")
    bad("bloom_policy_2", "a policy that there is not", short_frame(encode_row(plan(k=2), 40, {}), plan=bytes.fromhex("09 02 02 09 01 02")))
    bad("bloom_k_0", "no hash", short_frame(encode_row(plan(k=2), 40, {}), plan=bytes.fromhex("09 02 02 09 02 00 00")))
    bad("bloom_k_65", "65 hashes", short_frame(encode_row(plan(k=2), 40, {}), plan=bytes.fromhex("09 02 02 09 02 00 41")))
    bad("bloom_c_0", "no bits per index", short_frame(encode_row(plan(k=2), 40, {}), plan=bytes.fromhex("09 02 02 09 03 00 01 00")))
    bad("bloom_hashes_beyond_bits", "more hashes than go with one bit an index", index_frame(plan(k=2, c=65536), 40, 20, bytes(4)))
    good("bloom_largest", "a filter of 16 bits an element and 4096 more", index_frame(plan(policy=1, k=1, c=4736 * 65536), 40, 1, b"\xff" * 592, 40))
    bad("bloom_beyond_universe", "a filter of one word more", index_frame(plan(policy=1, k=1, c=4768 * 65536), 40, 1, b"\xff" * 596, 40))
    huffman_of = lambda n, byte: varint(2 * n + 1) + bytes([byte]) + pack_bits([(1, 1)] * (byte + 1))  # of n times a byte
    behind = lambda value, **fields: entry("f32", value, [stage("index", "bloom", **fields), stage("bytes", "huffman")])
    half = [stage("value", "half"), stage("bytes", "huffman")]
    bomb = lambda e, universe, index, value: short_frame(EncodedRow(e, 0, universe, universe, universe, value=len(value), index=len(index), payload=value + index + bytes(-len(value + index) % 4)))
    bad("bloom_bomb", "behind huffman: 128 MiB of filter for a universe of 16384", bomb(behind(half, k=1, c=0xfff00000), 16384, huffman_of(16384 * 65520 // 8, 0), huffman_of(32768, 0)))
    bad("bloom_64_hashes_of_ones", "64 hashes for each of 4 million elements", bomb(behind(half, k=64, c=1, choice=4), 2**22, huffman_of(2**22 // 65536 // 8 + 4, 255), huffman_of(2**23, 0)))
    sizes = [sum(murmur3(i.to_bytes(4, "little"), 0) % 32 == b for i in range(40)) for b in range(32)]
    bits = next(m for m in range(1, 2**20) if sum(n for b, n in enumerate(sizes) if m >> b & 1) == 19)
    bad("bloom_leftmost_19", "leftmost: as many positives as the frame says, but fewer than the count", index_frame(plan(c=65536), 40, 20, bits.to_bytes(4, "little"), 19), "decode")
    bad("bloom_none", "a count, but no support", index_frame(plan(policy=1, c=65536), 40, 20, bytes(4), 0))
    bad("bloom_2_32_bits", "a filter of 2^32 bits", general_frame([EncodedRow(plan(c=MASK32), 0, MASK32, 2**17, 2**17)]))


def value_raw():
    odd = {0: [0], 1: [0x80000000], 2: [1], 3: [0x7f7fffff], 4: [0x7f800000], 5: [0xff800000], 6: [0x7fc00000], 7: [0xff800001]}
    good("value_raw_f32", "zeros of both signs, a denormal, infinities, NaNs", encode([(8, odd)], PLAIN))
    good("value_raw_f16", "f16", encode([(9, {i: [v] for i, v in enumerate([0x8000, 1, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0x3c00])})], entry("f16", [RAW], [KEYS])))
    good("value_raw_bf16", "bf16", encode([(9, {i: [v] for i, v in enumerate([0x8000, 1, 0x7f7f, 0x7f80, 0xff80, 0x7fc1, 0x3f80])})], entry("bf16", [RAW], [KEYS])))
    good("value_raw_rows", "rows of five, zeros within", encode([(9, {2: [ONE, 0, 0, TWO, 0], 8: [0, 0, 0, 0, HALF]})], entry("f32", [RAW], [KEYS], width=5)))
    good("value_raw_row_of_300", "a width of two varint bytes", encode([(3, {1: patterns(300, 3, "f16")})], entry("f16", [RAW], [KEYS], width=300)))
    row = encode_row(PLAIN, 100, SIX)
    bad("value_raw_one_short", "a payload of a value less", short_frame(row, payload=row.payload[4:]))
    bad("value_raw_halves", "twice as many values as bytes", short_frame(replace(encode_row(entry("f16", [RAW], [KEYS]), 100, sample(100, 9, 1, "f16")), entry=PLAIN)))
    bad("value_raw_width", "values of another width", short_frame(replace(row, entry=entry("f32", [RAW], [KEYS], width=2))))


def qsgd():
    def codes(norms, numbers, width):
        return b"".join(norms) + pack_bits([(n, width) for n in numbers])

    one = struct.pack("<f", 1.0)
    five = stage("value", "qsgd", levels=5)

    def plan(dtype="f32", width=1, **fields):
        return entry(dtype, [stage("value", "qsgd", **fields)], [KEYS], width=width)
    good("qsgd_default", "127 levels, buckets of 512", encode([(300, sample(300, 100, 9))], plan()))
    good("qsgd_1_level", "two bits a code", encode([(300, sample(300, 100, 10))], plan(levels=1)))
    good("qsgd_most_levels", "32767 levels", encode([(300, sample(300, 50, 11))], plan(levels=32767)))
    good("qsgd_buckets_of_1", "a norm a value", encode([(300, sample(300, 20, 12))], plan(levels=3, bucket=1)))
    good("qsgd_short_bucket", "the last bucket is short", encode([(300, sample(300, 25, 13))], plan(levels=15, bucket=8)))
    good("qsgd_rows", "buckets go across rows", encode([(30, sample(30, 7, 14, width=3))], plan(width=3, levels=100, bucket=4)))
    good("qsgd_f16", "f16", encode([(300, sample(300, 30, 15, "f16"))], plan("f16")))
    good("qsgd_bf16", "bf16", encode([(300, sample(300, 30, 16, "bf16"))], plan("bf16")))
    good("qsgd_norm_0", "a bucket of zeros: the sign bit alone, also of level 0", value_frame([five], 3, codes([bytes(4)], [0, 1, 7], 4)))
    good("qsgd_f16_overflow", "a norm above f16: what exceeds the type is infinite", value_frame([five], 3, codes([struct.pack("<f", 1e6)], [10, 11, 0], 4), "f16"))
    good("qsgd_largest_norm", "the largest norm", value_frame([five], 2, codes([bytes.fromhex("ffff7f7f")], [10, 9], 4)))
    for name, norm in (("minus_0", "00000080"), ("negative", "000080bf"), ("infinite", "0000807f"), ("nan", "0100807f"), ("negative_nan", "ffffffff")):
        bad(f"qsgd_norm_{name}", "a norm that is negative or not finite", value_frame([five], 1, codes([bytes.fromhex(norm)], [2], 4)), "decode")
    bad("qsgd_second_norm_nan", "the norm of the second bucket is a NaN", value_frame([stage("value", "qsgd", levels=5, bucket=1)], 2, codes([one, bytes.fromhex("0000c07f")], [2, 2], 4)), "decode")
    bad("qsgd_level", "a level above the highest", value_frame([five], 1, codes([one], [12], 4)), "decode")
    bad("qsgd_padding", "padding that is not zero", value_frame([five], 1, one + b"\x10"), "decode")
    bad("qsgd_levels_0", "no level", short_frame(encode_row(PLAIN, 100, {}), plan=bytes.fromhex("09 01 05 01 00 02")))
    bad("qsgd_levels_32768", "too many levels", short_frame(encode_row(PLAIN, 100, {}), plan=bytes.fromhex("09 01 05 03 80 80 02 02")))
    bad("qsgd_bucket_0", "a bucket of nothing", short_frame(encode_row(PLAIN, 100, {}), plan=bytes.fromhex("09 01 05 02 05 00 02")))


def signs():
    """sign and ternary: what no encoder writes."""
    sign, means, three = stage("value", "sign"), stage("value", "sign", means=2), stage("value", "ternary")
    good("sign_largest_mean", "means of the largest number, and of no value", value_frame([means], 3, bytes.fromhex("ffff7f7f 00000000 05")))
    good("sign_f16_overflow", "a level above f16 is its largest number", value_frame([stage("value", "sign", level=0x47c35000)], 3, b"\x05", "f16"))
    bad("sign_mean_negative", "a mean that is negative", value_frame([means], 3, struct.pack("<ffB", 1, -1, 5)), "decode")
    bad("sign_mean_nan", "a mean that is no number", value_frame([means], 3, bytes.fromhex("0000c07f 0000803f 05")), "decode")
    bad("sign_padding", "padding that is not zero", value_frame([sign], 3, b"\x0d"), "decode")
    good("ternary_scale_0", "a scale of 0: of digit 0 it is negative", value_frame([three], 3, bytes.fromhex("00000000 31")))
    bad("ternary_scale_minus_0", "a scale that is negative", value_frame([three], 5, bytes.fromhex("00000080 79")), "decode")
    bad("ternary_byte", "a byte that stands for no digits", value_frame([three], 5, bytes.fromhex("0000803f f3")), "decode")
    bad("ternary_padding", "padding that is not zero", value_frame([three], 4, bytes.fromhex("0000803f 7a")), "decode")


def fit_poly():
    def plan(dtype="f32", **fields):
        return entry(dtype, [stage("value", "fit_poly", **fields)], [KEYS], [PACK])

    zero = stage("value", "fit_poly", degree=0)
    positive = {k: [v[0] & 0x7fffffff] for k, v in sample(300, 60, 17).items()}
    good("fit_poly_both_signs", "one segment a side", encode([(300, sample(300, 60, 17))], plan()))
    good("fit_poly_positive", "no negative side", encode([(300, positive)], plan()))
    good("fit_poly_negative", "no positive side", encode([(300, {k: [v[0] | 0x80000000] for k, v in positive.items()})], plan()))
    good("fit_poly_one_value", "a segment of one point", encode([(300, {5: [TWO]})], plan()))
    good("fit_poly_two_each", "fewer points than coefficients", encode([(300, {5: [TWO], 6: [ONE], 7: [MINUS], 9: [0xc0000000]})], plan(degree=9)))
    good("fit_poly_pieces", "a piece of a fifth on the positive side", encode([(400, sample(400, 320, 18, "f16"))], plan("f16", degree=2)))
    good("fit_poly_degree_0", "means", encode([(300, sample(300, 40, 19))], plan(degree=0)))
    good("fit_poly_degree_9", "the highest degree", encode([(300, sample(300, 90, 20))], plan(degree=9)))
    good("fit_poly_bf16", "bf16", encode([(300, sample(300, 50, 21, "bf16"))], plan("bf16")))
    good("fit_poly_clipped", "what a piece gives of the other sign becomes zero",
         value_frame([stage("value", "fit_poly", degree=1)], 4, struct.pack("<Iffff", 2, 0.0, 1.0, 0.0, 1.0), order=[PACK], order_payload=b"\xe4"))
    good("fit_poly_minus_0", "a coefficient of -0 stays -0", value_frame([zero], 2, struct.pack("<Iff", 1, -0.0, -0.0), order=[PACK], order_payload=b"\2"))
    good("fit_poly_saturates", "beyond f16 the largest number comes", value_frame([zero], 2, struct.pack("<Iff", 1, 1e30, -1e30), "f16", [PACK], b"\2"))
    # What was selected, and of the rest every seventh: that lies behind a jump.
    every = {i: [v] for i, v in enumerate(patterns(300, 53))}
    largest = topr(every, "f32", 80)
    strangers = {i: v for i, v in every.items() if i in largest or i % 7 == 0}
    good("fit_poly_jump", "values about zero behind a jump", encode([(300, strangers)], plan(knots=2)))
    good("fit_poly_jump_none", "no values about zero", encode([(300, {i: every[i] for i in largest})], plan(knots=2)))
    good("fit_poly_jump_one", "one value about zero", encode([(300, {i: every[i] for i in [*largest, min(strangers.keys() - largest)]})], plan(knots=2)))
    good("fit_poly_jump_positive", "no negative side", encode([(300, {i: [v[0] & 0x7fffffff] for i, v in strangers.items()})], plan(knots=2, degree=2)))
    good("fit_poly_jump_order", "a curve of magnitudes", encode([(300, strangers)], plan(knots=2, sign=1)))
    good("fit_poly_jump_chord", "a knot at a jump", encode([(300, strangers)], plan(knots=1)))
    jump, jump_order = stage("value", "fit_poly", degree=1, knots=2), stage("value", "fit_poly", degree=1, knots=2, sign=1)
    about = functools.partial(value_frame, [jump], 4, order=[PACK], order_payload=b"\xe4")
    good("fit_poly_jump_clipped", "about zero a curve may change its sign, elsewhere not",
         value_frame([jump], 8, struct.pack("<II", 2, 3) + bytes.fromhex("803f8040 0000 80bf8040 803f80c0".replace(" ", "")), order=[PACK], order_payload=bytes.fromhex("88c6fa")))
    good("fit_poly_jump_order_clipped", "of magnitudes none is below zero",
         value_frame([jump_order], 4, struct.pack("<I", 2) + bytes.fromhex("803f8040 803f803f 05".replace(" ", "")), order=[PACK], order_payload=b"\xe4"))
    bad("fit_poly_jump_many", "more values about zero than are left", about(struct.pack("<II", 2, 3) + bytes(8)), "decode")
    bad("fit_poly_jump_one_count", "only one count", about(struct.pack("<I", 4)), "decode")
    bad("fit_poly_jump_short", "a coefficient is missing", about(struct.pack("<II", 4, 0) + bytes(2)), "decode")
    bad("fit_poly_jump_long", "coefficients of four bytes", about(struct.pack("<II", 4, 0) + bytes(8)), "decode")
    bad("fit_poly_jump_infinite", "an infinite coefficient", about(struct.pack("<II", 4, 0) + bytes.fromhex("803f807f")), "decode")
    bad("fit_poly_knots_3", "unknown knots", short_frame(encode_row(PLAIN, 100, {}), plan=bytes.fromhex("49 01 07 02 05 03 02 02")))
    two = functools.partial(value_frame, [zero], 2, order=[PACK], order_payload=b"\2")
    bad("fit_poly_positives", "more positive values than values", two(struct.pack("<If", 3, 1.0)), "decode")
    bad("fit_poly_coefficient_missing", "a coefficient is missing", two(struct.pack("<I", 2)), "decode")
    bad("fit_poly_coefficient_too_many", "a coefficient too many", two(struct.pack("<Iff", 2, 1.0, 1.0)), "decode")
    bad("fit_poly_empty", "nothing", two(b""), "decode")
    bad("fit_poly_three_bytes", "less than a count", two(b"\2\0\0"), "decode")
    bad("fit_poly_infinite", "an infinite coefficient", two(struct.pack("<If", 2, math.inf)), "decode")
    bad("fit_poly_nan", "a coefficient that is a NaN", two(struct.pack("<I", 2) + bytes.fromhex("010080ff")), "decode")
    bad("fit_poly_width_2", "rows", short_frame(encode_row(PLAIN, 100, {}), plan=bytes.fromhex("49 21 02 06 02 02")))
    bad("fit_poly_degree_10", "a degree above 9", short_frame(encode_row(PLAIN, 100, {}), plan=bytes.fromhex("49 01 07 01 0a 02 02")))


def bitpack():
    zero = stage("value", "fit_poly", degree=0)

    def order(n, payload):
        return value_frame([zero], n, struct.pack("<If", n, 1.0), order=[PACK], order_payload=payload)
    polynomial = stage("value", "fit_poly", degree=9)
    for n in (1, 2, 3, 8, 9):
        values = {7 * i % (7 * n): [patterns(9, 30)[i] & 0x7fffffff] for i in range(n)}
        good(f"bitpack_{n}", f"{n} positions of {(n - 1).bit_length()} bits", encode([(100, values)], entry("f32", [polynomial], [KEYS], [PACK])))
    bad("bitpack_twice", "a position twice", order(2, b"\0"), "decode")
    bad("bitpack_not_below", "a position that is not below the number of values", order(3, bytes([3 | 0 << 2 | 1 << 4])), "decode")
    bad("bitpack_padding", "padding that is not zero", order(2, b"\6"), "decode")
    bad("bitpack_last_twice", "the last position equals the first", order(5, pack_bits([(p, 3) for p in (4, 0, 1, 2, 4)])), "decode")


def deflate():
    fixed = bytes.fromhex("6360 68b0 67c0 8301")  # SPEC.md's: eight times 1.0 in fixed codes
    eight = b"\0\0\x80\x3f" * 8
    dynamic = DYNAMIC
    good("deflate_stored", "a stored block", value_frame([RAW, DEFLATE], 8, stored(eight)))
    good("deflate_fixed", "SPEC.md's, in fixed codes", value_frame([RAW, DEFLATE], 8, fixed))
    good("deflate_dynamic", "dynamic codes, as zlib 1.2.13 made them", value_frame([RAW, DEFLATE], 90, dynamic))
    good("deflate_two_blocks", "two stored blocks, the first empty", value_frame([RAW, DEFLATE], 8, b"\x00\x00\x00\xff\xff" + stored(eight)))
    good("deflate_twice", "deflate behind deflate", value_frame([RAW, DEFLATE, DEFLATE], 8, stored(stored(eight))))
    good("deflate_four", "the most that a list takes", value_frame([RAW] + [DEFLATE] * 4, 8, stored(stored(stored(fixed)))))
    good("deflate_of_keys", "behind raw keys", index_frame(entry("f16", [RAW], [KEYS, DEFLATE]), 100, 3, stored(struct.pack("<3I", 1, 50, 99))))
    good("deflate_of_golomb", "behind golomb", index_frame(entry("f16", [RAW], [GOLOMB, DEFLATE]), 12, 3, stored(one_block(12, 12, encoder.encode_split_block([0, 2, 11], 0, decoder.golomb_parameter(12, 3))))))
    zero = stage("value", "fit_poly", degree=0)
    good("deflate_of_order", "behind bitpack", value_frame([zero], 2, struct.pack("<If", 2, 1.0), order=[PACK, DEFLATE], order_payload=stored(b"\1")))
    good("deflate_of_fit_poly", "behind fit_poly", value_frame([zero, DEFLATE], 2, stored(struct.pack("<If", 2, 1.0)), order=[PACK], order_payload=b"\2"))
    raw = functools.partial(value_frame, [RAW, DEFLATE], 8)
    bad("deflate_too_short", "a byte too few", raw(stored(eight[:-1])), "decode")
    bad("deflate_too_long", "a byte too many", raw(stored(eight + b"\0")), "decode")
    bad("deflate_behind_end", "a byte behind the stream's end", raw(stored(eight) + b"\0"), "decode")
    bad("deflate_cut_off", "a stream that breaks off", raw(fixed[:-1]), "decode")
    bad("deflate_no_last_block", "a stream without a last block", raw(b"\0" + stored(eight)[1:]), "decode")
    bad("deflate_empty", "no byte at all", raw(b""), "decode")
    bad("deflate_block_type_3", "a block type that there is not", raw(b"\7"), "decode")
    bad("deflate_zlib_wrapper", "a zlib header", raw(b"\x78\x9c" + stored(eight)), "decode")
    bad("deflate_length_complement", "a stored block whose lengths disagree", raw(b"\x01\x20\x00\x20\x00" + eight), "decode")
    bad("deflate_inner_bad", "the inner of two streams is damaged", value_frame([RAW, DEFLATE, DEFLATE], 8, stored(stored(eight)[:-1])), "decode")
    bad("deflate_golomb_bomb", "ten thousand bytes for three indices", index_frame(entry("f16", [RAW], [GOLOMB, DEFLATE]), 12, 3, BOMB), "decode")


# ---- frozen streams of zlib 1.2.13 (see freeze) ----------------------------------------------------------

DYNAMIC = bytes.fromhex("6d8fc1158030084399c159bc029dc2593c763356530b31edd3435e4b49c9474442528dea5e6f76df35f5f6f43cf6ed51f5ca3b4e9b7d531df40c69d5bafe41f698d598911c6b667772c0fbc930deb9d30fbb921ffbae3b17a7216f9a0d5ecc75b2c0237101")
BOMB = bytes.fromhex("edc1010d000000c2a0f74f6d0e37a0000000000000000000e0df00")


# ---- what the library must write, byte for byte ----------------------------------------------------------

def combine(key, part):
    return mix64(((key ^ part) + PHI) & MASK64)


def row_keys(call, tensor_key, segment):
    """FORMAT.md, random numbers: (shared, private)."""
    shared = combine(combine(combine(0, call.get("seed", 0)), call.get("step", 0)), tensor_key)
    if segment:
        shared = combine(shared, segment)
    return shared, combine(combine(shared, 1 << 32), call.get("private_seed", 0))


def input_text(kind, dtype, universe, row, width, order=None, key=0):
    cells = " ".join(f"{i}:" + ",".join(f"{v:x}" for v in row[i]) for i in (order or row))
    return f"{kind} {dtype} {universe}x{width} key={key} {cells}".rstrip()


def topr(row, dtype, count):
    ranked = sorted((i for i in row if to_double(row[i][0], dtype) != 0), key=lambda i: (-abs(to_double(row[i][0], dtype)), i))
    return sorted(ranked[:count])


def threshold(row, dtype, value):
    return sorted(i for i in row if abs(to_double(row[i][0], dtype)) >= value and to_double(row[i][0], dtype) != 0)


def encoded(name, plan, e, tensors, call=None, pick=None, widths=None, mode=0):
    """tensors: [(kind, universe, row, key)]; pick(row): the indices that the plan's sparsifier keeps; widths: of the columns in the general
    form, which are the bytes that a column's bound needs: the encoder knows it before the data."""
    call = call or {}
    rows, texts = [], []
    for position, (kind, universe, row, key) in enumerate(tensors):
        texts.append(input_text(kind, e.dtype, universe, row, e.width, list(row), key))
        segment = call.get("segment_rows") or max(1, universe)
        chosen = pick(row) if pick else sorted(i for i in row if kind == "sparse" or any(to_double(v, e.dtype) != 0 for v in row[i]))
        for number, start in enumerate(range(0, max(1, universe), segment)):
            _, private = row_keys(call, key or position, number)
            encoder.ENCODERS["value", "qsgd"] = functools.partial(qsgd_with, private)
            part = {i - start: v for i, v in row.items() if start <= i < start + segment}
            keys = [i - start for i in chosen if start <= i < start + segment]
            rows.append(encode_row(e, min(segment, universe - start), part, mode, keys, continues=number > 0))
    encoder.ENCODERS["value", "qsgd"] = encoder.encode_qsgd
    flags = LIST if call.get("list") else 0
    if may_be_short(rows) and "tag" not in call:
        data = short_frame(rows[0], SHORT | flags, size_bytes=call.get("size_bytes"))
    else:
        data = general_frame(rows, flags, tag=call.get("tag"), widths=widths)
        assert widths, name
    add_encoded(name, plan, call, texts, data)


def may_be_short(rows):
    return len(rows) == 1 and rows[0].universe < 2**24 and len(encoder.short_header(rows[0])) <= 28


def qsgd_with(private, values, shape, fields):
    return encoder.encode_qsgd(values, shape, fields, private)


def add_encoded(name, plan, call, texts, data):
    words = " ".join(f"{k}={int(v)}" for k, v in call.items() if k != "size_bytes")
    encodes.append([name, plan, words or "-", " | ".join(texts)])
    good(name, f"the library writes these bytes for {plan}", data)


def blocks():
    """`block` before an index codec: U = 100 has 12 blocks of 8 and one of 4."""
    def plan(index, block=8, value=(RAW,), **more):
        return entry("f32", value, index, block=block, **more)

    def forged(e, universe, keys, payload, mode=0, support=None, **more):
        """A frame of one row whose index section is `payload`, of zeros."""
        n = len(keys) if support is None else support
        fixed = is_fixed(e.index)
        row = EncodedRow(e, mode, universe, len(keys), n, index=0 if fixed or mode else len(payload), payload=bytes(4 * n) + payload)
        return short_frame(replace(row, payload=row.payload + bytes(-len(row.payload) % 4)), **more)

    u32 = lambda *keys: struct.pack(f"<{len(keys)}I", *keys)
    whole, with_tail = {k: patterns(1, k) for k in [*range(8), *range(40, 48)]}, {k: patterns(1, k) for k in [*range(8), *range(96, 100)]}
    bloom_8 = stage("index", "bloom", **encoder.bloom_fields(0.1))
    for block in (2, 4, 8, 16, 32):
        good(f"block_{block}", f"blocks of {block}, the last one among them", encode([(1000, {k: [ONE + k] for k in (3, 17, 500, 999)})], plan([GOLOMB], block)))
    good("block_raw", "keys of blocks: of fixed size", encode([(100, whole)], plan([KEYS])))
    good("block_raw_tail", "the last block, which is short", encode([(100, with_tail)], plan([KEYS])))
    good("block_only_tail", "only the last block", encode([(100, {99: [TWO]})], plan([KEYS])))
    good("block_longer_than_universe", "one block that is longer than the universe", encode([(5, {2: [TWO]})], plan([GOLOMB], 32)))
    good("block_whole_universe", "all blocks", encode([(100, {k: [HALF] for k in range(100)})], plan([GOLOMB], value=[QSGD])))
    good("block_none", "no block", encode([(100, {})], plan([GOLOMB])))
    good("block_deflate", "a bytes codec behind the blocks' codec", forged(plan([KEYS, DEFLATE]), 100, whole, stored(u32(0, 5))))
    good("block_bitmap", "a bitmap of blocks", encode([(100, with_tail)], plan([stage("index", "bitmap")])))
    good("block_bloom", "a filter of blocks: the support is elements of its positives", encode([(1000, {k: [ONE + k] for k in range(100)})], plan([bloom_8])))
    good("block_all", "all blocks, for no bytes", encode([(100, whole)], plan([stage("index", "all")])))
    good("block_reorders", "an order beside blocks, of elements", encode([(100, with_tail)], entry("f32", [FIT], [KEYS], [PACK], block=8)))
    good("block_segments", "segments: each has blocks of its own", encode([(100, {k: [ONE + k] for k in (2, 31, 64, 99)})], plan([GOLOMB]), segment=30))
    good("block_two_sizes", "two tensors, of blocks of two sizes", general_frame([encode_row(plan([GOLOMB]), 100, whole), encode_row(plan([GOLOMB], 16), 100, whole)]))
    good("block_raw_index_mode", "raw keys are elements, and need not be blocks", encode([(100, {3: [ONE], 98: [TWO]})], plan([bloom_8]), mode=1))
    good("block_dense_mode", "a dense row has no blocks", encode([(20, {3: [ONE]})], plan([GOLOMB]), mode=2))
    good("block_five_codecs", "block, and four behind it: five codecs",
         forged(plan([KEYS, DEFLATE, DEFLATE, DEFLATE]), 100, whole, stored(stored(stored(u32(0, 5))))))
    bad("block_rest", "22 of 100 elements are not whole blocks", forged(plan([KEYS]), 100, range(22), u32(0, 5, 12)))
    bad("block_rest_of_support", "a support that is not whole blocks", short_frame(replace(encode_row(plan([bloom_8]), 1000, whole), support=21)))
    bad("block_last_missing", "20 of 100 elements, but the last block is not there", forged(plan([KEYS]), 100, range(20), u32(0, 5, 7)), "decode")
    bad("block_last_in_excess", "24 of 100 elements, but the last block, which is short, is there", forged(plan([KEYS]), 100, range(24), u32(0, 5, 12)), "decode")
    bad("block_not_below", "a block that the universe does not have", forged(plan([KEYS]), 96, range(16), u32(0, 12)), "decode")
    bad("block_descends", "blocks that do not ascend", forged(plan([KEYS]), 96, range(16), u32(5, 0)), "decode")
    bad("block_twice", "a block twice", forged(plan([KEYS]), 96, range(16), u32(5, 5)), "decode")
    head = lambda counts, *stages: bytes([counts, 1]) + b"".join(encoder.stage_bytes(s) for s in stages)
    one = stage("index", "block")
    bad("block_alone", "block with nothing behind it", general_frame([], plan=head(0x09, RAW, one)))
    bad("block_before_block", "block before block", general_frame([], plan=head(0x19, RAW, one, one, KEYS)))
    bad("block_before_nothing", "block before block, and nothing behind", general_frame([], plan=head(0x11, RAW, one, one)))
    bad("block_of_1", "blocks of 2^0", general_frame([], plan=head(0x11, RAW, stage("index", "block", log2_size=0), KEYS)))
    bad("block_of_64", "blocks of 2^6", general_frame([], plan=head(0x11, RAW, stage("index", "block", log2_size=6), KEYS)))
    bad("block_field_at_default", "a last field that equals its default", general_frame([], plan=bytes.fromhex("11 01 02 1d 01 03 02")))
    bad("block_carries_order", "keys of blocks cannot carry the order", general_frame([], plan=b"\x11\x11" + b"".join(encoder.stage_bytes(s) for s in (FIT, one, KEYS))))
    bad("block_behind_golomb", "block where a bytes codec belongs", general_frame([], plan=head(0x11, RAW, GOLOMB, one)), status="UNSUPPORTED")

    def largest_blocks(row, universe, block, target):
        energy = {b: sum(to_double(row[k][0], "f32") ** 2 for k in range(b * block, min((b + 1) * block, universe)) if k in row) for b in range(-(-universe // block))}
        selected_blocks = sorted(sorted(b for b in energy if energy[b]), key=lambda b: -energy[b])[:target]
        return decoder.expand(sorted(selected_blocks), block, universe)

    row, tail = sample(1000, 300, 70), {k: v for k, v in sample(1003, 300, 71).items() if k >= 900}
    for block, target in ((2, 50), (8, 12), (32, 3)):
        encoded(f"encode_blocks_{block}", f"sparsify=blocks(ratio=0.1,block={block}) index=golomb value=raw", plan([GOLOMB], block), [("dense", 1000, row, 0)],
                pick=lambda r, block=block, target=target: largest_blocks(r, 1000, block, target))
    encoded("encode_blocks_tail", "sparsify=blocks(count=500,block=8) index=raw value=raw", plan([KEYS]), [("dense", 1003, tail, 0)], pick=lambda r: largest_blocks(r, 1003, 8, 63))


def chunks():
    """U = 25 in chunks of 10: 2, 2 and 1 indices are usual."""
    def code(size=10):
        return entry("f32", [RAW], [stage("index", "chunks", size=size)])

    def rows(*indices):
        return {i: [ONE + i] for i in indices}
    good("chunks_usual", "as many in every chunk", encode([(25, rows(2, 7, 13, 18, 24))], code()))
    good("chunks_full", "a chunk of all its elements", encode([(30, rows(3, *range(10, 20), 25))], code()))
    good("chunks_few", "indices in less than half of the chunks", encode([(3000, rows(5, 1207, 1208, 2999))], code(100)))
    good("chunks_gap", "a gap of 15 bits", encode([(4096, rows(*range(10), 4000, 4001))], code(4096)))
    good("chunks_one", "one chunk: its count is that of the support", encode([(10, rows(0, 9))], code()))
    good("chunks_largest", "a chunk of 32768", encode([(40000, rows(0, 17, 32767, 32768, 39999))], code(32768)))
    good("chunks_of_one", "chunks of one element", encode([(20, rows(*range(0, 20, 3)))], code(1)))
    good("chunks_segments", "segments: each has chunks of its own", encode([(100, rows(2, 31, 64, 99))], code(), segment=30))

    def refused(name, why, payload, universe=25, n=5):
        bad(f"chunks_{name}", why, index_frame(code(), universe, n, bytes.fromhex(payload)), "decode")
    good("chunks_by_hand", "the example of SPEC.md", index_frame(code(), 25, 5, bytes.fromhex("02 00 b2 77")))
    refused("above_size", "a usual count above the size", "0b 00 b2 77")
    refused("too_many_named", "more named chunks than there are", "02 04 b2 77")
    refused("usual_named", "the usual count under a name", "02 01 00 02 b2 77")
    refused("beyond_last", "a chunk beyond the last", "01 01 03 0a 2b", 30, 12)
    refused("above_elements", "a chunk of more than its elements", "01 01 01 0b 2b", 30, 13)
    refused("other_count", "counts that do not add up", "02 00 b2 77", 25, 4)
    refused("padding", "padding that is not zero", "02 00 b2 f7")
    refused("byte_behind", "a byte too many", "02 00 b2 77 00")
    refused("byte_missing", "a byte too few", "02 00 b2")
    refused("far_gap", "a gap beyond its chunk", "00 06", 10, 2)
    refused("short_gap", "a gap in 15 bits that needs none", "00 00 00 02 00 07", 10, 2)
    bad("chunks_size_0", "chunks of no elements", short_frame(encode_row(code(), 25, rows(3)), plan=bytes.fromhex("09 01 02 23 01 00")))
    bad("chunks_size_32769", "chunks of 32769", short_frame(encode_row(code(), 25, rows(3)), plan=bytes.fromhex("09 01 02 23 01 81 80 02")))


def transforms():
    """Coefficients: of a vector, of a matrix."""
    def code(size=64, columns=0, **more):
        return entry("f32", [RAW], [GOLOMB], transform=(size, columns), **more)

    def rows(*indices):
        return {i: [ONE + i] for i in indices}
    good("dct_vector", "coefficients of runs", encode([(200, rows(0, 63, 64, 199))], code()))
    good("dct_matrix", "coefficients of tiles, of which some are not whole", encode([(70 * 13, rows(0, 5, 100, 909))], code(8, 13)))
    good("dct_smallest", "tiles of 2 by 2", encode([(9, rows(0, 8))], code(2, 3)))
    good("dct_segments", "segments: the transform is that of the tensor", encode([(64 * 64, rows(1, 999, 1000, 4095))], code(64, 64), segment=1000))
    good("dct_general", "in the general form, beside a tensor that is not transformed",
         general_frame([encode_row(code(), 64, rows(3)), encode_row(entry("f32", [RAW], [GOLOMB]), 64, rows(4))]))
    row = encode_row(code(), 100, rows(3))
    table = bytearray(entry_bytes(code()))
    def form(kind, why, status="CORRUPT", **changed):
        plan = bytearray(table)
        for at, byte in changed.items():
            plan[int(at[1:])] = byte
        bad(f"dct_{kind}", why, short_frame(row, plan=bytes(plan)), status=status)
    form("size_1", "tiles of one element", "UNSUPPORTED", _2=0x10)
    form("size_128", "tiles of 128", "UNSUPPORTED", _2=0x17)
    form("kind_0", "a transform of kind 0", "UNSUPPORTED", _2=0x06)
    form("kind_2", "a transform of kind 2", "UNSUPPORTED", _2=0x26)
    form("f16", "coefficients of half precision", _1=0x82)
    form("patch", "a patch of coefficients", "UNSUPPORTED", _1=0xc1)
    form("ragged", "rows of 7 columns do not fill 100 elements", _3=7)
    wide = bytes(table[:3]) + varint(2**32) + bytes(table[4:])
    bad("dct_columns", "columns that are not below 2^32", short_frame(row, plan=wide))
    bad("dct_width", "coefficients of rows", short_frame(row, plan=bytes([table[0], 0xa1, 2]) + bytes(table[2:])))


def planes():
    whole = stage("index", "all")

    def plan(dtype="bf16", coded=(), patch=False):
        return entry(dtype, [stage("value", "planes", choices={"coded": coded})], [whole], patch=patch)

    def rows(words):
        return {i: [w] for i, w in enumerate(words)}

    # As the library writes them: exponents of numbers are coded, of f16 with three bits of the mantissa, here 0.
    for dtype, coded in (("bf16", [1]), ("f32", [3]), ("f16", [1])):
        words = [w & ~0x380 if dtype == "f16" else w for w in weights(300, 110, dtype)]
        encoded(f"encode_planes_{dtype}", "index=all value=planes", plan(dtype, coded), [("dense", 300, rows(words), 0)])
    for dtype, coded in (("bf16", [1]), ("f16", [1]), ("f64", [7]), ("u8", [0]), ("u16", [1]), ("u32", [0, 2])):
        spread = {"u8": 0x0b, "u16": 0x07ff, "u32": 0xff03ff01}.get(dtype, 0xfc7f if dtype == "f16" else 2**64 - 1)
        words, zeros = [w & spread for w in weights(200, 111, dtype)], [0] * 200
        add_patch(f"patch_planes_{dtype}", f"all words of a tensor of {dtype}, from zeros: an anchor of a store", encode([(200, {i: [w] for i, w in enumerate(words) if w})], plan(dtype, coded, True), bases=[zeros]),
                  [zeros], plan="sparsify=changed index=all value=planes", dtypes=[dtype])
    example = [0x3f80, 0xbf80, 0x3f80, 0x4000, 0x3f80, 0xbf80, 0x3f80, 0x3f80]
    good("planes_example", "SPEC.md's: its second plane is coded", encode([(8, rows(example))], plan(coded=[1])))
    good("planes_states", "a string of sixteen states", encode([(2100, rows(0x3f80 if i % 300 else 0x4000 for i in range(2100)))], plan(coded=[1])))
    noise = weights(100, 112, "u16")
    good("planes_noise", "two blocks: one of constants, and one of which nothing is coded", encode([(2**18 + 100, rows([0x3f80] * 2**18 + noise))], plan()))
    skewed = [0x3f80 if i % 20000 else 0x4000 for i in range(2**18 + 2**16 + 1000)]
    good("planes_strings", "two blocks of four strings each", encode([(len(skewed), rows(skewed))], plan(coded=[1])))
    good("planes_four", "four strings", encode([(2**16, rows(skewed[:2**16]))], plan(coded=[1])))

    def refused(name, why, n, payload):
        data = payload + bytes(-len(payload) % 4)
        bad(f"planes_{name}", why, short_frame(EncodedRow(plan(), 0, n, n, n, value=len(payload), payload=data)), "decode")
    raw, table, names, one = bytes(8), bytes.fromhex("01801c"), b"\x7f\x80", struct.pack("<I", 4)
    state = struct.pack("<I", 1325056)
    for name, why, payload in (
            ("empty", "no mode", b""), ("one_mode", "a mode of two", bytes(1)), ("mode_3", "a mode that is none", bytes([0, 3]) + raw + raw),
            ("raw_cut", "a raw plane of a byte less", bytes(2) + bytes(15)), ("behind", "bytes behind the planes", bytes(2) + bytes(17)),
            ("no_constant", "a constant plane without its byte", bytes([0, 2]) + raw), ("names", "names that descend", bytes([0, 1]) + raw + table + names[::-1] + one + state),
            ("same_names", "a name twice", bytes([0, 1]) + raw + table + b"\x7f\x7f" + one + state), ("no_names", "a block that ends in its names", bytes([0, 1]) + raw + table + b"\x7f"),
            ("frequency_0", "a symbol that does not occur", bytes([0, 1]) + raw + b"\1\0" + names + one + state), ("frequencies", "frequencies of 4096 before the last", bytes([0, 1]) + raw + b"\1\x80\x20" + names + one + state),
            ("long_string", "a string that is longer than its block", bytes([0, 1]) + raw + table + names + struct.pack("<I", 5) + state),
            ("no_state", "a string without its state", bytes([0, 1]) + raw + table + names + struct.pack("<I", 0)),
            ("low_state", "a state below 2^16", bytes([0, 1]) + raw + table + names + one + struct.pack("<I", 65535)),
            ("end_state", "a state that does not end where it began", bytes([0, 1]) + raw + table + names + one + struct.pack("<I", 1325057)),
            ("string_behind", "a word behind the last symbol", bytes([0, 1]) + raw + table + names + struct.pack("<I", 6) + state + bytes(2))):
        refused(name, why, 8, payload)
    refused("one_constant", "a constant plane of one word", 1, bytes([0, 2, 0, 0]))
    constant = bytes([2, 2, 0, 0x3f])
    refused("block_size", "a block that is longer than the payload", 2**18 + 9, struct.pack("<I", 100) + constant + constant)
    refused("block_rest", "a block without its last byte", 2**18 + 9, struct.pack("<I", 3) + constant + constant)
    refused("no_sizes", "a payload that ends in the sizes of its blocks", 2**18 + 9, bytes(3))


def encode_cases():
    def bloom_plan(dtype="f32", value=RAW, fpr=0.1, policy=0, seed=0, order=None):
        return entry(dtype, [value], [stage("index", "bloom", policy=policy, seed=seed, **encoder.bloom_fields(fpr))], order or [])

    def dense(row, universe=200, key=0):
        return [("dense", universe, row, key)]

    row = sample(200, 60, 40)
    ties = {i: [v] for i, v in enumerate([ONE, MINUS, TWO, ONE, 0, 0x80000000, HALF, MINUS, ONE])}
    for index in ("raw", "golomb", "rice"):
        for value in ("raw", "qsgd"):
            encoded(f"encode_{index}_{value}", f"index={index} value={value}", values_index(stage("value", value), stage("index", index)), dense(row),
                    {"seed": 7, "step": 3, "private_seed": 5})
    encoded("encode_topr", "sparsify=topr(ratio=0.1) index=golomb value=raw", values_index(RAW, GOLOMB), dense(row), pick=lambda r: topr(r, "f32", 20))
    encoded("encode_topr_ties", "sparsify=topr(count=4) index=raw value=raw", PLAIN, dense(ties, 9), pick=lambda r: topr(r, "f32", 4))
    encoded("encode_topr_f16", "sparsify=topr(ratio=0.2) index=rice value=raw", entry("f16", [RAW], [RICE]), dense(sample(200, 90, 41, "f16")), pick=lambda r: topr(r, "f16", 40))
    encoded("encode_threshold", "sparsify=threshold(value=0.03125) index=golomb value=raw", values_index(RAW, GOLOMB), dense(row), pick=lambda r: threshold(r, "f32", 0.03125))
    encoded("encode_golomb_block_9", "index=golomb(block=9) value=raw", entry("bf16", [RAW], [stage("index", "golomb", block=9)]),
            [("sparse", 1000, sample(1000, 600, 42, "bf16"), 0)])
    encoded("encode_rice_block_9", "index=rice(block=9) value=raw", entry("bf16", [RAW], [stage("index", "rice", block=9)]), [("sparse", 100000, sample(100000, 550, 43, "bf16"), 0)])
    encoded("encode_qsgd_levels", "index=golomb value=qsgd(levels=15,bucket=16)", values_index(stage("value", "qsgd", levels=15, bucket=16), GOLOMB), dense(row), {"private_seed": 1})
    encoded("encode_qsgd_step", "index=golomb value=qsgd(levels=15,bucket=16)", values_index(stage("value", "qsgd", levels=15, bucket=16), GOLOMB), dense(row), {"private_seed": 1, "step": 1})
    encoded("encode_qsgd_key", "index=golomb value=qsgd(levels=15,bucket=16)", values_index(stage("value", "qsgd", levels=15, bucket=16), GOLOMB), dense(row, key=12345678901234567890), {"private_seed": 1})
    encoded("encode_qsgd_1_level", "index=raw value=qsgd(levels=1)", values_index(stage("value", "qsgd", levels=1), KEYS), dense(row), {"seed": MASK64, "step": MASK64, "private_seed": MASK64})
    encoded("encode_qsgd_f16", "index=golomb value=qsgd", entry("f16", [QSGD], [GOLOMB]), dense(sample(200, 60, 44, "f16")))
    encoded("encode_qsgd_bf16", "index=golomb value=qsgd(levels=1000)", entry("bf16", [stage("value", "qsgd", levels=1000)], [GOLOMB]), dense(sample(200, 60, 45, "bf16")))
    encoded("encode_qsgd_rows", "index=golomb value=qsgd(levels=7,bucket=5)", entry("f32", [stage("value", "qsgd", levels=7, bucket=5)], [GOLOMB], width=3), [("sparse", 50, sample(50, 12, 46, width=3), 0)])
    encoded("encode_qsgd_segments", "index=raw value=qsgd", values_index(QSGD, KEYS), dense(row), {"segment_rows": 70, "private_seed": 9}, widths=[1, 1, 1, 0, 0, 0, 0, 0])
    encoded("encode_two_tensors", "index=raw value=qsgd(levels=3)", values_index(stage("value", "qsgd", levels=3), KEYS), dense(row) + dense(sample(90, 20, 47), 90), {"seed": 2, "list": 1}, widths=[1, 1, 1, 0, 0, 0, 0, 0])
    encoded("encode_tag", "index=raw value=raw", PLAIN, dense(SIX, 100), {"tag": 0xfedcba9876543210}, widths=[1, 1, 1, 0, 0, 0, 0, 0])
    encoded("encode_list", "index=raw value=raw", PLAIN, dense(SIX, 100), {"list": 1})
    encoded("encode_nothing", "index=golomb value=qsgd", values_index(QSGD, GOLOMB), dense({}, 100))
    encoded("encode_wide_sizes", "index=rice value=raw", values_index(RAW, RICE), dense({5: [ONE], 69999: [TWO]}, 70000), {"size_bytes": 3})
    encoded("encode_beyond_32_bits", "index=raw value=raw", PLAIN, [("sparse", 2**32 + 5, {0: [ONE], 2**32 - 2: [TWO], 2**32 - 1: [HALF], 2**32 + 4: [MINUS]}, 0)],
            {"segment_rows": MASK32}, widths=[1, 4, 1, 0, 0, 0, 0, 0])
    encoded("encode_sparse_unsorted", "index=golomb value=raw", values_index(RAW, GOLOMB), [("sparse", 100, dict(reversed(list(SIX.items()))), 0)])
    encoded("encode_rows", "index=golomb value=raw", entry("bf16", [RAW], [GOLOMB], width=4), [("sparse", 40, sample(40, 9, 48, "bf16", 4), 0)])
    encoded("encode_dense_fallback", "index=raw value=raw", PLAIN, dense({i: [ONE + i] for i in range(20) if i % 4}, 20), mode=2)

    encoded("encode_fit_poly", "index=golomb value=fit_poly", entry("f32", [FIT], [GOLOMB], [PACK]), dense(row))
    encoded("encode_fit_poly_carried", "index=raw value=fit_poly", entry("f32", [FIT], [KEYS], carries=True), dense(row))
    encoded("encode_fit_poly_degrees", "index=golomb value=fit_poly(degree=9)", entry("f32", [stage("value", "fit_poly", degree=9)], [GOLOMB], [PACK]), dense(sample(200, 120, 49)))
    encoded("encode_fit_poly_pieces", "index=rice value=fit_poly(degree=2)", entry("f16", [stage("value", "fit_poly", degree=2)], [RICE], [PACK]), dense(sample(800, 400, 50, "f16"), 800))
    encoded("encode_fit_poly_jump", "index=raw value=fit_poly(knots=jump)", entry("f32", [JUMP], [KEYS], carries=True), dense(row))
    encoded("encode_fit_poly_ties", "index=golomb value=fit_poly(degree=0)", entry("f32", [stage("value", "fit_poly", degree=0)], [GOLOMB], [PACK]), dense({**ties, 40: [0x80000000], 50: [MINUS]}, 60))

    every = {i: [v] for i, v in enumerate(patterns(300, 51))}  # a codec that replaces the support gathers again from the dense tensor
    few = topr(every, "f32", 15)
    for name, policy, support in (("leftmost", 0, 1), ("p0", 1, 2)):  # p0: of up to 300 values
        topr_bloom = f"sparsify=topr(ratio=0.05) index=bloom(policy={name}"
        encoded(f"encode_bloom_{name}", f"{topr_bloom},fpr=0.1,seed=11) value=raw", bloom_plan(policy=policy, seed=11), dense(every, 300), pick=lambda r: few,
                widths=[1, 2, 1, 1, 0, 0, 0, 0])
        encoded(f"encode_bloom_{name}_qsgd", f"{topr_bloom},fpr=0.02) value=qsgd", bloom_plan(value=QSGD, fpr=0.02, policy=policy), dense(every, 300), {"private_seed": 3},
                pick=lambda r: few, widths=[1, 2, 1, 1, 0, 0, 0, 0])
        encoded(f"encode_bloom_{name}_fit_poly", f"{topr_bloom},fpr=0.3) value=fit_poly", bloom_plan(value=JUMP, fpr=0.3, policy=policy, order=[PACK]), dense(every, 300),
                pick=lambda r: few, widths=[1, 2, 1, 1, support, 0, 0, 0])
        encoded(f"encode_bloom_{name}_fractions", f"{topr_bloom},fpr=0.3) value=fit_poly(knots=fractions)", bloom_plan(value=FIT, fpr=0.3, policy=policy, order=[PACK]), dense(every, 300),
                pick=lambda r: few, widths=[1, 2, 1, 1, support, 0, 0, 0])
    encoded("encode_bloom_of_sparse", "index=bloom(policy=p0,fpr=0.2) value=raw", bloom_plan(fpr=0.2, policy=1), [("sparse", 200, sample(200, 12, 52), 0)], widths=[1, 1, 1, 1, 0, 0, 0, 0])
    naive()


def naive():
    """bloom's naive keeps the values of the support that went in, in order, at the support that comes out."""
    every = {i: [v] for i, v in enumerate(patterns(300, 51))}
    few = topr(every, "f32", 15)
    e = entry("f32", [RAW], [stage("index", "bloom", **encoder.bloom_fields(0.3))])
    support = encoder.SUPPORTS["bloom"](few, Shape(300, 15, 15), e.index[0].fields)
    data = general_frame([encode_row(e, 300, {t: every[k] for t, k in zip(support, few)}, 0, few)], widths=[1, 2, 1, 1, 0, 0, 0, 0])
    add_encoded("encode_bloom_naive", "sparsify=topr(ratio=0.05) index=bloom(policy=naive,fpr=0.3) value=raw", {}, [input_text("dense", "f32", 300, every, 1, list(every))], data)


# ---- patches ----------------------------------------------------------------------------------------------

def based_text(dtype, words, width=1):
    return tensor_text(decoder.Tensor(len(words) // width, width, dtype, list(range(len(words) // width)), list(words)))


def weights(n, seed, dtype="bf16"):
    """Words of magnitudes as weights have them."""
    r, bits = random.Random(seed), 8 * decoder.VALUE_SIZE[dtype]
    mantissa, bias = {"f32": (23, 127), "bf16": (7, 127), "f16": (10, 15), "f64": (52, 1023)}.get(dtype, (0, 0))
    if not bias:
        return [r.getrandbits(bits) for _ in range(n)]
    return [r.getrandbits(1) << bits - 1 | (bias - r.randrange(10)) << mantissa | r.getrandbits(mantissa) for _ in range(n)]


def step(base, dtype, seed, share=0.1, width=1):
    """How some rows change: small words more often than others, usually in the last one or two bits."""
    r, bits, out = random.Random(seed), 8 * decoder.VALUE_SIZE[dtype], {}
    for i in range(len(base) // width):
        row = base[i * width:(i + 1) * width]
        small = decoder.word_key(row[0], dtype) < 121 if dtype not in ("u8", "u16", "u32") else i % 8 == 0
        if r.random() < share * (3 if small else 0.5):
            row[r.randrange(width)] += r.choice((1, 1, 1, -1, 2, 17)) if row[0] > 16 and row[0] < 2**bits - 17 else 1
            out[i] = [w % 2**bits for w in row]
    return out


def add_patch(name, why, data, bases, status="OK", noticed="-", plan="-", dtypes=("bf16",), width=1, history=None):
    assert name not in frames and len(data) < limit, (name, len(data))
    frames[name] = data
    if history is not None:
        histories.append([name, bytes(history).hex()])
    past = [] if history is None else [history]
    texts = [based_text(dtype, base, width) for dtype, base in zip(dtypes, bases)]
    becomes = "-"
    if status == "OK":
        becomes = " | ".join(map(tensor_text, decode_frame(data, bases, past).tensors))
    else:
        try:
            decode_frame(data, bases, past)
            raise AssertionError(f"{name}: the reference decoder takes it")
        except {"CORRUPT": Corrupt, "UNSUPPORTED": Unsupported, "ARGUMENT": decoder.WrongBase}[status] as error:
            assert status == "ARGUMENT" or "check of" not in str(error), f"{name}: refused for its check: {error}"
            assert "something else" not in str(error) or "result" in name, f"{name}: refused for its result: {error}"
    patches.append([name, status, noticed, " | ".join(texts) or "-", becomes, plan, why])


def patch_frames():
    def plan(value, index, dtype="bf16", width=1):
        return entry(dtype, value, index, width=width, patch=True)
    ulp, magnitude = stage("value", "ulp"), stage("index", "magnitude")
    by_class = stage("index", "magnitude", choices={"thresholds": (119, 121, 124)})
    ulp_by_class = stage("value", "ulp", choices={"thresholds": (121,), "raw": False})
    xor_coded = stage("value", "xor", choices={"raw": False})
    base = weights(300, 70)
    row = step(base, "bf16", 71)

    def good(name, why, value, index, library="-", **more):
        add_patch(f"patch_{name}", why, encode([(300, row)], plan(value, index), bases=[base], **more), [base], plan=library)
    good("raw", "positions and words", [RAW], [KEYS], "sparsify=changed index=raw value=raw")
    good("golomb", "gaps and words", [RAW], [GOLOMB], "sparsify=changed index=golomb value=raw")
    good("general", "the general form", [RAW], [GOLOMB], short=False)
    good("tagged", "a tag", [RAW], [GOLOMB], tag=7)
    good("magnitude", "one class of the base's words", [RAW], [magnitude])
    good("by_class", "four classes, and what became of the words by two", [ulp_by_class], [by_class])
    good("xor", "coded bits that differ", [xor_coded], [GOLOMB])
    good("words", "ulp and xor send the words themselves where codes are not shorter", [stage("value", "xor", choices={"raw": True})], [GOLOMB])
    good("huffman", "bytes codecs behind codecs of patches", [ulp_by_class, stage("bytes", "huffman")], [by_class, stage("bytes", "huffman")])
    good("all", "every word", [ulp_by_class], [stage("index", "all")])
    good("all_raw", "every word itself", [RAW], [stage("index", "all")], "sparsify=changed index=all value=raw")
    good("dense", "mode 2", [RAW], [GOLOMB], mode=2)
    add_patch("patch_nothing", "nothing changed", encode([(300, {})], plan([RAW], [GOLOMB]), bases=[base]), [base], plan="sparsify=changed index=golomb value=raw")
    add_patch("patch_empty", "a tensor of no element", encode([(0, {})], plan([RAW], [GOLOMB]), bases=[[]]), [[]], plan="sparsify=changed index=golomb value=raw")
    for dtype in decoder.WORDS.values():
        words = weights(120, 80, dtype)
        for codec in ("ulp", "xor"):
            e = plan([stage("value", codec, choices={"raw": False})], [magnitude], dtype)
            add_patch(f"patch_{codec}_{dtype}", f"{codec} of {dtype}", encode([(120, step(words, dtype, 81, 0.2))], e, bases=[words]), [words], dtypes=[dtype])
        wide = weights(120, 82, dtype)
        add_patch(f"patch_rows_{dtype}", f"rows of three {dtype}", encode([(40, step(wide, dtype, 83, 0.2, 3))], plan([RAW], [GOLOMB], dtype, 3), bases=[wide]), [wide],
                  dtypes=[dtype], width=3, plan="sparsify=changed index=golomb value=raw")
    bits = [0, 0x80000000, 0x7fc00001, 0x7fc00001, 0xff800000, 0x7f800001]
    add_patch("patch_bits", "-0 is not 0, a NaN is what its bits are", encode([(6, {0: [0x80000000], 1: [0], 3: [0x7fc00002], 4: [0x7f800000], 5: [0x7fc00001]})],
              plan([stage("value", "ulp", choices={"raw": False})], [KEYS], "f32"), bases=[bits]), [bits], dtypes=["f32"])
    several = [weights(n, n) for n in (50, 0, 9)]
    add_patch("patch_of_three", "three tensors, one of them empty", encode([(len(b), step(b, "bf16", 90, 0.3)) for b in several], plan([RAW], [GOLOMB]), bases=several), several,
              dtypes=["bf16"] * 3)
    long = weights(8200, 95, "u8")
    data = encode([(8200, {5: [long[5] ^ 1], 4096: [long[4096] ^ 3], 8199: [long[8199] ^ 7]})], plan([RAW], [GOLOMB], "u8"), segment=4096, bases=[long])
    add_patch("patch_segments", "segments of 4096 rows", data, [long], dtypes=["u8"])

    def bad(name, why, data, status="CORRUPT", noticed="inspect"):
        add_patch(f"patch_{name}", why, data, [base], status, noticed)
    here, there = decoder.check_of_words(base, "bf16"), decoder.check_of_words([w for i in range(300) for w in row.get(i, [base[i]])], "bf16")

    def made(value=(RAW,), index=(GOLOMB,), changes=row, **more):
        return short_frame(encode_row(plan(list(value), list(index)), 300, changes, base=base, **more))
    bad("other_base", "a base with another check", made(checks=[here ^ 1, there]), "ARGUMENT", "decode")
    bad("other_result", "a result with another check", made(checks=[here, there ^ 1]), noticed="decode")
    bad("raw_index_mode", "mode 1", made(mode=1))
    bad("lossy", "a lossy value codec", short_frame(encode_row(PLAIN, 300, {}), plan=bytes([9, 0x43]) + entry_bytes(values_index(QSGD, KEYS))[2:]))
    bad("filter", "a codec that replaces the support", short_frame(replace(encode_row(entry("bf16", [RAW], [stage("index", "bloom")], patch=True), 300, {}, base=base), support=0)))
    bad("blocks", "blocks", short_frame(encode_row(entry("bf16", [RAW], [KEYS], block=8, patch=True), 300, {}, base=base)))
    bad("without", "a codec of patches without a base", short_frame(encode_row(entry("bf16", [ulp], [KEYS]), 300, {})))
    bad("type_5", "a type that no patch has", short_frame(encode_row(PLAIN, 300, {}), plan=bytes([9, 0x45, 2, 2])), "UNSUPPORTED")
    bad("and_gradient", "one tensor a patch, the other not", general_frame([encode_row(plan([RAW], [KEYS]), 300, {}, base=base), encode_row(entry("bf16", [RAW], [KEYS]), 300, {})]))
    half = encode([(300, row)], plan([RAW], [GOLOMB]), segment=150, bases=[base])
    bad("short_segment", "a segment of 150 rows before another", half)

    def classes(payload, count=3, changes=(0, 3, 9)):
        small = base[:12]
        e = plan([RAW], [magnitude])
        return small, short_frame(EncodedRow(e, 0, 12, count, count, index=len(payload), payload=(lambda p: p + bytes(-len(p) % 4))(
            struct.pack("<QQ", decoder.check_of_words(small, "bf16"), 0) + bytes(2 * count) + payload)))
    sizes = [sum(decoder.word_key(w, "bf16") < 121 for w in base[:12])]
    for name, why, payload in (
            ("no_classes", "no class", bytes([0])), ("nine_classes", "nine classes", bytes([9, *range(1, 9)])), ("thresholds", "thresholds that do not ascend", bytes([3, 5, 5])),
            ("threshold_0", "a threshold of 0", bytes([2, 0])), ("counts", "more changes than words", bytes([2, 121, 2, 3, 0])), ("words", "more words than there are", bytes([2, 121, 13, 3, 0])),
            ("coder_3", "a coder that is none", bytes([1, 3])), ("last_size", "a size of the last body", bytes([1, 4 * 2, 2, 0x15])), ("small_bitmap", "a bitmap of a few words", bytes([1, 2, 0, 7])),
            ("other_classes", "classes of another base", bytes([2, 121, (sizes[0] + 1) % 12, 0, 0, 2, 0x15])), ("cut", "a body that ends too early", bytes([1, 0])),
            ("behind", "bytes behind the last body", bytes([1, 0, 2, 0x15, 0, 0]))):
        small, data = classes(payload)
        add_patch(f"patch_magnitude_{name}", why, data, [small], "CORRUPT", "decode")

    def changes(payload, n=4):
        small = base[:n]
        return small, short_frame(EncodedRow(plan([ulp], [stage("index", "all")]), 0, n, n, n, value=len(payload), payload=(lambda p: p + bytes(-len(p) % 4))(
            struct.pack("<QQ", decoder.check_of_words(small, "bf16"), 0) + payload)))
    state, one = struct.pack("<I", 65536), bytes([0])  # (a table of one symbol, 0, writes nothing)
    for name, why, payload in (
            ("empty", "nothing", b""), ("short_words", "fewer words than there are", bytes(8)), ("nine_classes", "nine classes", bytes([9, *range(1, 9)])),
            ("symbols", "more symbols than the type has", bytes([1, 27]) + bytes(27) + state), ("frequencies", "frequencies of 4096 before the last", b"\1\1\x80\x20" + state),
            ("no_state", "a string without its state", b"\1" + one), ("low_state", "a state below 2^16", b"\1" + one + struct.pack("<I", 65535)),
            ("end_state", "a state that does not end where it began", b"\1" + one + struct.pack("<I", 65537)), ("behind", "bytes behind the string", b"\1" + one + state + b"\0"),
            ("string_size", "a string longer than the payload", b"\1\x0e" + bytes(14) + b"\x09" + state), ("padding", "padding of the bits apart", b"\1\x0e" + bytes(14) + b"\4" + state + b"\0\x10")):
        small, data = changes(payload)
        add_patch(f"patch_ulp_{name}", why, data, [small], "CORRUPT", "decode")

    chains(plan, base, row)


def chains(plan, base, row):
    """Patches with a history."""
    def past(n, seed):
        r = random.Random(seed)
        return [r.choice((0, 0, 0, 1, 129, 2, 34, 200, 31, 255)) for _ in range(n)]

    def by(choice, **more):
        return stage("index", "history", choices=choice), stage("value", "history", choices={**choice, "raw": False, **more})
    rows = {"groups": [119, 122], "grades": {0: [0, 1, 2], 1: [3, 3, 7], 6: [4, 5, 6]}, "thresholds": (2, 4, 14)}
    flat = {"groups": [], "grades": {0: [0], 1: [1]}, "thresholds": (1, 2)}
    zeros, history = [0] * 300, past(300, 73)

    def good(name, why, index, value, of, dtype="bf16", words=base, changes=row, width=1):
        e = plan(list(value), list(index), dtype, width)
        add_patch(f"patch_{name}", why, encode([(len(words) // width, changes)], e, bases=[words], histories=[of]), [words], dtypes=[dtype], width=width, history=of)
    for name, choice in (("no_map", {}), ("groups", rows), ("flat", flat)):
        index, value = by(choice)
        good(f"history_{name}", f"by a history: {name}", [index], [value], history)
        good(f"history_{name}_first", f"the first of a chain: {name}", [index], [value], zeros)
    index, value = by(rows)
    good("history_words", "numbers themselves", [index], [by(rows, raw=True)[1]], history)
    good("history_huffman", "bytes codecs behind codecs of chains", [index, stage("bytes", "huffman")], [value, stage("bytes", "huffman")], history)
    good("history_index", "which words change, by a history", [index], [RAW], history)
    good("history_all", "every word", [stage("index", "all")], [value], history)
    good("history_of_ulp", "a history that no codec reads", [GOLOMB], [stage("value", "ulp", choices={"raw": False})], history)
    for dtype in decoder.WORDS.values():
        words, wide = weights(120, 80, dtype), weights(120, 82, dtype)
        index, value = by(flat)
        good(f"history_{dtype}", f"of {dtype}", [index], [value], past(120, 74), dtype, words, step(words, dtype, 81, 0.2))
        good(f"history_rows_{dtype}", f"rows of three {dtype}", [GOLOMB], [value], past(120, 75), dtype, wide, step(wide, dtype, 83, 0.2, 3), 3)
    index, value = by(rows)
    made = encode([(300, row)], plan([value], [index]), bases=[base], histories=[history])
    add_patch("patch_history_none", "a history, where its receiver has none", made, [base], "CORRUPT", "decode")
    add_patch("patch_history_other", "another history", made, [base], "CORRUPT", "decode", history=history[:-1] + [history[-1] ^ 1])
    small, short_past = base[:12], [1, 129, 0, 34] * 3
    check = struct.pack("<I", decoder.history_check(short_past))
    for name, why, of_map in (
            ("no_check", "a check that is cut off", None), ("17_groups", "17 groups of keys", bytes([17, *range(1, 17), 1]) + bytes(7)), ("keys", "keys that do not ascend", bytes([3, 9, 9, 1, 0, 0])),
            ("key_0", "a second group from key 0", bytes([2, 0, 1, 0])), ("state_0", "no state 0", bytes([1, 2, 0])), ("states", "more states than there are", bytes([1, 0x81, 0x80, 0x80, 0x10, 0])),
            ("padding", "padding of the grades", bytes([1, 1, 8])), ("cut", "a map that ends too early", bytes([2, 9, 3, 0]))):
        payload = check[:3] if of_map is None else check + of_map if name == "cut" else check + of_map + bytes([1, 0, 2, 0x15])
        checks = struct.pack("<QQ", decoder.check_of_words(small, "bf16"), 0)
        padded = (lambda p: p + bytes(-len(p) % 4))
        add_patch(f"patch_history_index_{name}", why, short_frame(EncodedRow(plan([RAW], [index]), 0, 12, 3, 3, index=len(payload), payload=padded(checks + bytes(6) + payload))),
                  [small], "CORRUPT", "decode", history=short_past)
        add_patch(f"patch_history_value_{name}", why, short_frame(EncodedRow(plan([value], [stage("index", "all")]), 0, 12, 12, 12, value=len(payload), payload=padded(checks + payload))),
                  [small], "CORRUPT", "decode", history=short_past)


# ---- writing, comparing ----------------------------------------------------------------------------------

def make():
    container()
    index_raw()
    split("golomb", "golomb")
    split("rice", "rice")
    for part in (bloom, value_raw, qsgd, signs, fit_poly, bitpack, deflate, blocks, chunks, transforms, planes, encode_cases, patch_frames):
        part()


def table(rows, comment):
    assert not any("\t" in cell or "\n" in cell for row in rows for cell in row)
    return "".join("\t".join(row) + "\n" for row in [["# " + comment], *sorted(rows)])


def files():
    out = {f"frames/{name}.frame": data for name, data in frames.items()}
    out["manifest.tsv"] = table(manifest, "name, status, noticed by, tag, decodes to, why: made by make.py").encode()
    out["patches.tsv"] = table(patches, "name, status, noticed by, bases, assigns, plan, why: made by make.py").encode()
    out["patch_histories.tsv"] = table(histories, "name, histories: made by make.py").encode()
    out["encode.tsv"] = table(encodes, "frame, plan, call, tensors: made by make.py").encode()
    return out


# A frame of each codec that was added after the first ones: what the library wrote then stays readable, and means what the reference decoder,
# written from their SPEC.md, makes of it.
LATER = [
    ("golomb_adaptive", "rows", "index=golomb(adaptive=1)"), ("golomb_adaptive_9", "rows", "index=golomb(block=9,adaptive=1)"), ("bitmap", "rows", "index=bitmap"),
    *((f"rle_{code}", "strewn", f"index=rle(code={code})") for code in ("packed", "runs8", "runs16", "runs32", "gaps8", "gaps16", "gaps32")),
    ("elias_fano", "strewn", "index=elias_fano"), ("delta_varint", "strewn", "index=delta_varint"), ("delta_varint_huffman", "rows", "index=delta_varint+huffman"),
    ("delta_bitpack", "strewn", "index=delta_bitpack"), ("seeded", "all", "index=seeded(ratio=0.05)"), ("all", "all", "index=all value=qsgd"), ("index_auto", "rows", "index=auto"),
    *((f"bloom_{policy}", "strewn", f"index=bloom(policy={policy},fpr=0.05)") for policy in ("middle", "rightmost", "p1", "p2")),
    ("bloom_split_block", "strewn", "index=bloom(policy=p0,bits=12,layout=split_block)"), ("bloom_bits", "strewn", "index=bloom(policy=p2,bits=9)"),
    ("half_f16", "rows", "value=half"), ("half_bf16", "rows", "value=half(type=bf16)"), ("zstd", "strewn", "value=raw+zstd"), ("qsgd_huffman", "rows", "value=qsgd+huffman"),
    ("sketch", "rows", "value=sketch(buckets=16)+huffman"), ("three_lc", "rows", "value=three_lc"), ("fit_poly_chord", "rows", "value=fit_poly(knots=chord)"),
    ("fit_poly_lines", "rows", "value=fit_poly(degree=1,knots=chord,segments=6,sign=order)"), ("fit_dexp", "rows", "value=fit_dexp"), ("fit_dexp_order", "rows", "value=fit_dexp(sign=order)"),
    ("rank_fit", "rows", "value=rank_fit(bits=3)"), ("uniform_quant", "rows", "value=uniform_quant(error=0.01)"), ("uniform_quant_bits", "rows", "value=uniform_quant(bits=4)"),
    ("log_quant", "rows", "value=log_quant(bits=4)"), ("lloyd", "rows", "value=lloyd(levels=8)"), ("value_auto", "rows", "index=auto value=auto(error=0.03)"),
    ("gap_huffman", "rows", "index=gap_huffman"), ("gap_huffman_strewn", "strewn", "index=gap_huffman"), ("delta_pfor", "rows", "index=delta_pfor"), ("delta_pfor_strewn", "strewn", "index=delta_pfor"),
    *((f"blocks_{block}", "rows", f"sparsify=blocks(ratio=0.1,block={block}) index=golomb value=log_quant") for block in (2, 4, 8, 16, 32)),
    ("blocks_bloom", "all", "sparsify=blocks(ratio=0.1,block=4) index=bloom(policy=p0,fpr=0.1) value=half"), ("blocks_seeded", "all", "sparsify=blocks(ratio=0.1,block=8) index=seeded(ratio=0.1)"),
    ("blocks_fit_poly", "all", "sparsify=blocks(ratio=0.1,block=8) index=raw value=fit_poly"), ("blocks_auto", "rows", "sparsify=blocks(ratio=0.1,block=16) index=auto value=auto(error=0.1)"),
    ("natural", "rows", "value=natural"), ("natural_nearest", "rows", "value=natural(rounding=nearest)"), ("dynamic_tree", "rows", "value=dynamic_tree"), ("inceptionn", "rows", "value=inceptionn(error=0.01)"),
    ("sign", "all", "index=all value=sign"), ("sign_mean", "rows", "value=sign(scale=mean)"), ("sign_means", "all", "sparsify=adaq(ratio=0.1) index=golomb value=sign(scale=means)"),
    ("sign_level", "rows", "value=sign(scale=level,level=0.01)"), ("ternary", "all", "index=all value=ternary"), ("ternary_rows", "rows", "value=ternary(clip=0)"),
    ("chunks", "all", "sparsify=chunks(count=3,size=64) index=chunks(size=64) value=lloyd(levels=4)"), ("chunks_rows", "rows", "index=chunks(size=30)")]


def from_library(path):
    """Frames that only the library makes: zlib's own streams, batches and bounds as it lays them out. The reference decoder defines what they decode to."""
    import os
    os.environ["DEEPREDUCE_LIBRARY"] = str(path)
    sys.path.insert(0, str(here.parent.parent / "bindings" / "python"))
    import deepreduce
    import numpy
    for old in (here / "frames").glob("library_*.frame"):
        old.unlink()
    made = []

    def keep(name, plan, tensors, why, **call):
        data = bytes(deepreduce.encode(tensors, plan, **call))
        assert len(data) < limit, (name, len(data))
        (here / "frames" / f"library_{name}.frame").write_bytes(data)
        f = decode_frame(data)
        made.append([f"library_{name}", "OK", "-", "-" if f.tag is None else str(f.tag), " | ".join(map(tensor_text, f.tensors)), f"{why}: {plan}"])

    def values(n, seed, dtype="f32"):
        kind = {"f32": ("<u4", "<f4"), "f16": ("<u2", "<f2")}[dtype]
        return numpy.array(patterns(n, seed, dtype), kind[0]).view(kind[1])
    keep("raw_deflate", "sparsify=topr(ratio=0.3) index=raw+deflate value=raw+deflate(level=9)", values(300, 60), "zlib's streams")
    keep("golomb_deflate", "sparsify=topr(ratio=0.3) index=golomb+deflate value=qsgd(levels=3)+deflate", values(500, 61), "zlib behind golomb and qsgd")
    keep("rice_batch", "sparsify=topr(ratio=0.1) index=rice value=fit_poly", [values(900, 62), values(40, 63), values(400, 64)], "three tensors, as the library lays them out", tag=5)
    keep("bloom_batch", "sparsify=topr(ratio=0.05) index=bloom(policy=p0,fpr=0.01) value=qsgd", [values(900, 65, "f16"), values(500, 66, "f16")], "filters, with their bounds", seed=3)
    keep("fit_poly_order", "sparsify=topr(ratio=0.5) index=golomb value=fit_poly+deflate order=bitpack+deflate", values(400, 67), "deflate behind fit_poly and bitpack")
    def gradient(kind, seed):
        """500 values: one in twenty, or nine in ten of two in five runs of 30, as gradients have them; the others are zero."""
        r = random.Random(seed)
        runs = [kind == "all" or kind == "rows" and r.random() < 0.4 for _ in range(17)]
        return numpy.where([r.random() < (0.9 if runs[i // 30] else 0.05 if kind == "strewn" else 0) for i in range(500)], values(500, seed), 0).astype("<f4")

    for seed, (name, kind, plan) in enumerate(LATER, 100):
        keep(name, plan, [gradient(kind, seed)], "as the library writes it", seed=seed, step=3)
    (here / "library.tsv").write_text(table(made, "name, status, noticed by, tag, decodes to, why: made by make.py --library"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    make()
    found = files()
    if arguments.check:
        there = {str(p.relative_to(here)): p.read_bytes() for p in [*here.glob("frames/*.frame"), here / "manifest.tsv", here / "patches.tsv", here / "patch_histories.tsv", here / "encode.tsv"] if not p.name.startswith("library_")}
        wrong = sorted(name for name in found.keys() | there.keys() if found.get(name) != there.get(name))
        if wrong:
            sys.exit(f"not what make.py makes: {', '.join(wrong[:20])}{' …' if len(wrong) > 20 else ''} ({len(wrong)} files)")
        print(f"{len(frames)} frames, {sum(map(len, frames.values()))} bytes, as make.py makes them")
        return
    for old in (here / "frames").glob("*.frame"):
        if not old.name.startswith("library_"):
            old.unlink()
    for name, data in found.items():
        (here / name).write_bytes(data)
    if arguments.library:
        from_library(arguments.library.resolve())
    total = sum(p.stat().st_size for p in (here / "frames").iterdir())
    print(f"{len(list((here / 'frames').iterdir()))} frames, {total} bytes")


if __name__ == "__main__":
    main()
