"""A tiny encoder of DeepReduce frames, version 1, written like decoder.py from the documents alone.

It makes frames for the decoders, valid ones and, as every header field can be set by hand, invalid ones.

    plan = entry("f32", [stage("value", "raw")], [stage("index", "golomb")])
    data = encode([(1000, {3: [0x3f800000], 17: [0xc0200000]})], plan)          one tensor

A row of values is a dict index -> [bit pattern] * width; absent indices hold zeros.
"""
import ctypes
import math
import struct
import zlib
from dataclasses import dataclass, replace

import decoder
from decoder import (CODECS, HALVES, LIST, MASK32, MASK64, PHI, SHORT, STATUS, TAG, VALUE_SIZE, Entry, Shape, Stage,
                     bloom_bits, bloom_places, check, CHUNK_QUOTIENT_MAX, chunk_divisor, chunk_elements, usual_count, convert, decode_bloom, decode_seeded, dynamic_tree_entry, elias_fano_low, fit_poly_segments, huffman_codes, rle_unit, clustered_parameter, golomb_parameter, gram, gram_b, expand, in_blocks, is_fixed, largest, level_divisor, log2_ceil,
                     WORDS, check_of_words, in_order, word_key, mix64, replaces, rank_fit_levels, rice_parameter, round_to, to_double, without_check)

IDS = {(codec.role, codec.name): number for (_, number), codec in CODECS.items()}


def pack_bits(numbers):
    """[(number, bits)], low bit first, padded to a byte."""
    text = "".join(format(n, f"0{bits}b")[::-1] for n, bits in numbers if bits)
    return int("0" + text[::-1], 2).to_bytes((len(text) + 7) // 8, "little")


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


# ---- codecs: (what to encode, shape, fields) -> payload ----

def encode_index_raw(indices, shape, fields):
    return struct.pack(f"<{len(indices)}I", *indices)


# ---- patches ----

def class_of(word, shape, thresholds):
    return sum(word_key(word, shape.dtype) >= t for t in thresholds)


def rans_table(counts):
    """Frequencies with the sum 4096, of {symbol: count}."""
    total, size = sum(counts.values()), max(counts) + 1
    table = [max(1, counts[s] * 4096 // total) if counts.get(s) else 0 for s in range(size)]
    while sum(table) != 4096:
        largest_one = table.index(max(table))
        table[largest_one] += max(4096 - sum(table), -(table[largest_one] // 2))
    return table


def put_rans_table(table):
    return bytes([len(table) - 1]) + b"".join(map(varint, table[:-1]))


def put_rans(symbols, tables):
    """The string of symbols, of which symbol i is of tables[i]: backwards, for a decoder reads it forwards."""
    lanes, words = 1 if len(symbols) < 2048 else 16, []
    states = [65536] * lanes
    for i in reversed(range(len(symbols))):
        x, table, s = states[i % lanes], tables[i], symbols[i]
        if x >= table[s] << 20:
            words.append(x & 65535)
            x >>= 16
        states[i % lanes] = (x // table[s] << 12) + x % table[s] + sum(table[:s])
    return struct.pack(f"<{lanes}I", *states) + struct.pack(f"<{len(words)}H", *reversed(words))


def encode_magnitude(indices, shape, fields, thresholds=(), bitmaps=False):
    """Thresholds are the caller's choice; bitmaps: of each class that may have one."""
    classes, changed = [[] for _ in range(len(thresholds) + 1)], set(indices)
    for i, word in enumerate(shape.base):
        classes[class_of(word, shape, thresholds)].append(i)
    ranks = [[rank for rank, i in enumerate(members) if i in changed] for members in classes]
    last = max(c for c, ones in enumerate(ranks) if ones)
    head, bodies = bytes([len(classes), *thresholds]), b""
    for c, (members, of_class) in enumerate(zip(classes, ranks)):
        head += varint(len(members)) + varint(len(of_class)) if c < len(thresholds) else b""
        if not of_class:
            continue
        shape_, coder = Shape(len(members), len(of_class), len(of_class)), 0
        body = encode_split(golomb_parameter, True)(of_class, shape_, {"block": 12})
        if bitmaps and len(members) >= 32768:
            bitmap = encode_bitmap(of_class, shape_, {})
            table = rans_table({s: bitmap.count(s) for s in set(bitmap)})
            body, coder = put_rans_table(table) + put_rans(list(bitmap), [table] * len(bitmap)), 2
        head += varint((0 if c == last else 4 * len(body)) + coder)
        bodies += body
    return head + bodies


def encode_changes(number):
    def encode(values, shape, fields, thresholds=(), raw=None):
        """raw: whether the words themselves are sent; None: if that is not longer."""
        size, numbers = VALUE_SIZE[shape.dtype], [number(o, w, shape.dtype) for o, w in zip(shape.base, values)]
        symbols = [z if size == 1 or z < 14 else 10 + z.bit_length() for z in numbers]
        of = [class_of(word, shape, thresholds) for word in shape.base]
        tables = []
        for c in range(len(thresholds) + 1):
            here = [s for s, k in zip(symbols, of) if k == c] or [0]
            tables.append(rans_table({s: here.count(s) for s in set(here)}))
        string = put_rans(symbols, [tables[c] for c in of])
        apart = [(z - (1 << s - 11), s - 11) for z, s in zip(numbers, symbols) if size > 1 and s >= 14]
        head = bytes([len(tables), *thresholds]) + b"".join(map(put_rans_table, tables))
        coded = head + (varint(len(string)) if apart else b"") + string + pack_bits(apart)
        plain = b"\0" + encode_value_raw(values, shape, {})
        return plain if raw or raw is None and len(plain) <= len(coded) else coded
    return encode


def put_grades(shape, states, state_of, groups, grades):
    """groups: the first keys of each but the first, or None for no map; grades: {state: [of each group]}."""
    head = struct.pack("<I", decoder.history_check(shape.history or [0] * len(shape.base)))
    if groups is None:
        return head + b"\0", [0] * len(shape.base)
    bits = pack_bits([(grade, 3) for s in sorted(grades) for grade in grades[s]])
    head += bytes([1 + len(groups), *groups]) + varint(sum(1 << s for s in grades)) + bits
    return head, decoder.read_grades(decoder.Reader(head), shape, states, state_of)


def as_grades(grades):
    """(json has text for the numbers of states)"""
    return {int(s): grade for s, grade in (grades or {}).items()}


def encode_history_index(indices, shape, fields, groups=None, grades=None, thresholds=(), bitmaps=False):
    head, of = put_grades(shape, 25, decoder.since_and_stood, groups, as_grades(grades))
    return head + encode_magnitude(indices, replace(shape, dtype="u8", base=of), fields, thresholds, bitmaps)


def encode_history_value(values, shape, fields, groups=None, grades=None, thresholds=(), raw=None):
    head, of = put_grades(shape, 7, decoder.since, groups, as_grades(grades))
    history = shape.history or [0] * len(shape.base)
    numbers = [decoder.turned(ulp_number(o, w, shape.dtype), h, shape.dtype) for o, w, h in zip(shape.base, values, history)]
    keys = [decoder.word_of_grade(grade, shape.dtype) for grade in of]
    return head + encode_changes(lambda _, z, __: z)(numbers, replace(shape, base=keys), fields, thresholds, raw)


def ulp_number(old, new, dtype):
    bits = 8 * VALUE_SIZE[dtype]
    d = (in_order(new, dtype) - in_order(old, dtype)) % 2**bits
    return 2 * d if d < 2**(bits - 1) else 2 * (2**bits - d) - 1


def encode_split(parameter, may_cluster):
    def encode(indices, shape, fields):
        size, base, table, bodies = 1 << fields["block"], 0, b"", b""
        blocks = [indices[i:i + size] for i in range(0, len(indices), size)]
        for block in blocks:
            end = block[-1] + 1
            m, clustered = parameter(end - base, len(block)), 0
            body = encode_split_block(block, base, m)
            if may_cluster and m > 1:
                other = encode_split_block(block, base, clustered_parameter(m))
                if len(other) < len(body):
                    body, clustered = other, 1
            if len(blocks) == 1:
                table += varint(2 * (shape.universe - end) + clustered)
            else:
                table += struct.pack("<IH", end, len(body) + 0x8000 * clustered)
            bodies += body
            base = end
        return table + bodies
    return encode


def encode_split_block(block, base, m):
    c = log2_ceil(m)
    s, vs, qs, extras = (1 << c) - m, [], [], []
    for x, before in zip(block, [base - 1] + block):
        q, r = divmod(x - before - 1, m)
        qs += [(0, 1)] * q + [(1, 1)]
        if m > 1:
            vs.append((r if r < s else (r + s) >> 1, max(c, 1) - 1))
            extras += [] if r < s else [(r + s & 1, 1)]
    return pack_bits(vs) + pack_bits(qs) + pack_bits(extras)


def encode_bloom(indices, shape, fields, salt=None):
    """salt: of p1 and p2; without it p1 has a fixed one, and p2 the first of 4 that keeps most indices (more are slow here)."""
    m = bloom_bits(shape, fields)
    bits = bytearray(m // 8)
    for i in indices:
        for b in bloom_places(i, m, fields):
            bits[b // 8] |= 1 << b % 8
    if fields["choice"] < 3:
        return bytes(bits)
    if salt is None:
        salt = 0x1234567
        if fields["choice"] == 4:
            support = lambda salt: decode_bloom(bytes(bits) + struct.pack("<I", salt), shape, fields)
            salt = max(range(4), key=lambda salt: len(set(indices) & set(support(salt))))
    return bytes(bits) + struct.pack("<I", salt)


def bloom_fields(fpr):
    """k and c for a false-positive rate."""
    bits = math.log2(1 / fpr)
    return {"k": max(1, round(bits)), "c": round(65536 * bits / math.log(2))}


def encode_bitmap(indices, shape, fields):
    support = set(indices)
    return pack_bits([(i in support, 1) for i in range(shape.universe)])


def gaps_of(indices):
    return [x - before - 1 for x, before in zip(indices, [-1] + indices)]


def encode_rle(indices, shape, fields):
    code = fields["code"]
    lengths = gaps_of(indices)
    if code < 4:
        runs = []
        for gap in lengths:
            if gap == 0 and runs:
                runs[-1] += 1
            else:
                runs += [gap, 1]
        lengths = runs
    if code == 0:
        width = max(lengths).bit_length()
        return bytes([width]) + pack_bits([(n, width) for n in lengths])
    size, escape = rle_unit(code)
    return b"".join((escape.to_bytes(size, "little") * (n // escape) + (n % escape).to_bytes(size, "little")) for n in lengths)


def encode_elias_fano(indices, shape, fields):
    l = elias_fano_low(shape.universe, len(indices))
    ones = {(x >> l) + i for i, x in enumerate(indices)}
    return pack_bits([(x & (1 << l) - 1, l) for x in indices]) + pack_bits([(p in ones, 1) for p in range(max(ones) + 1)])


def encode_chunks(indices, shape, fields):
    size = fields["size"]
    elements = chunk_elements(shape.universe, size)
    chunks = [[] for _ in elements]
    for x in indices:
        chunks[x // size].append(x % size)
    whole = [len(chunk) for chunk, n in zip(chunks, elements) if n == size]
    c = votes = 0
    for k in filter(None, whole):
        if votes == 0:
            c = k
        votes += 1 if k == c else -1
    if 2 * sum(map(bool, whole)) <= len(whole):
        c = 0
    out, before = [], -1
    for i, (chunk, n) in enumerate(zip(chunks, elements)):
        if len(chunk) != usual_count(c, n, size):
            out.append(varint(i - before - 1) + varint(len(chunk)))
            before = i
    pairs = []
    for chunk, n in zip(chunks, elements):
        m = n
        for r, gap in zip(range(len(chunk), 0, -1), gaps_of(chunk)):
            if r < m:
                pairs += chunk_pairs(gap, m, r)
            m -= gap + 1
    head = varint(c) + varint(len(out)) + b"".join(out) if len(elements) > 1 else b""
    return head + pack_bits(pairs)


def chunk_pairs(gap, m, r):
    divisor = chunk_divisor(m, r)
    q, x = (0, gap) if r == 1 else divmod(gap, divisor)
    if q >= CHUNK_QUOTIENT_MAX:
        return [(0, CHUNK_QUOTIENT_MAX), (gap, 15)]
    b = log2_ceil(divisor)
    t = 2**b - divisor
    rest = [] if divisor == 1 else [(x, b - 1)] if x < t else [(x + t >> 1, b - 1), (x + t & 1, 1)]
    return ([] if r == 1 else [(0, q), (1, 1)]) + rest


def encode_delta_varint(indices, shape, fields):
    return b"".join(varint(gap) for gap in gaps_of(indices))


def encode_delta_bitpack(indices, shape, fields):
    gaps = gaps_of(indices)
    blocks = [gaps[i:i + 128] for i in range(0, len(gaps), 128)]
    widths = [max(block).bit_length() for block in blocks]
    return bytes(widths) + b"".join(pack_bits([(gap, width) for gap in block]) for block, width in zip(blocks, widths))


def huffman_lengths(counts):
    """{symbol: length} of at most 11 bits; of at least two symbols."""
    counts = dict(counts) if len(counts) > 1 else {min({0, 1} - set(counts)): 1, **counts}
    while True:
        lengths, heap = dict.fromkeys(counts, 0), [(count, [symbol]) for symbol, count in sorted(counts.items())]
        while len(heap) > 1:
            heap.sort(key=lambda node: node[0])
            (a, left), (b, right), *rest = heap
            for symbol in left + right:
                lengths[symbol] += 1
            heap = [(a + b, left + right)] + rest
        if max(lengths.values()) <= 11:
            return lengths
        counts = {symbol: (count + 1) // 2 for symbol, count in counts.items()}


def gap_lengths(lengths):
    bits, before, symbol, last = [(max(lengths), 6)], 3, 0, max(lengths)
    while symbol <= last:
        if symbol in lengths:
            more = lengths[symbol] - before
            bits += {0: [(0, 1)], 1: [(1, 3)], -1: [(5, 3)], 2: [(3, 4)], -2: [(11, 4)]}.get(more, [(15, 4), (lengths[symbol], 4)])
            before = lengths[symbol]
            symbol += 1
        else:
            run = min(s for s in lengths if s > symbol) - symbol
            below = run.bit_length() - 1
            bits += [(7, 4), (1 << below, below + 1), (run & (1 << below) - 1, below)]
            symbol += run
    return pack_bits(bits)


def encode_gap_huffman(indices, shape, fields):
    """Every second block has the code before it, if that has words for its symbols."""
    gaps, table, bodies, words = gaps_of(indices), b"", b"", {}
    for number, start in enumerate(range(0, len(gaps), 4096)):
        block = gaps[start:start + 4096]
        widths = [max(0, gap.bit_length() - 2) for gap in block]
        symbols = [2 * width + (gap >> width) for gap, width in zip(block, widths)]
        own = number % 2 == 0 or not set(symbols) <= set(words)
        body = b""
        if own:
            lengths = huffman_lengths({s: symbols.count(s) for s in set(symbols)})
            body = gap_lengths(lengths)
            words = {s: [(bit == "1", 1) for bit in word] for word, s in huffman_codes(lengths).items()}
        strings = [pack_bits([bit for s in symbols[i:i + 512] for bit in words[s]]) for i in range(0, len(block), 512)]
        body += b"".join(len(string).to_bytes(2, "little") for string in strings[:-1]) + b"".join(strings)
        body += pack_bits([(gap & (1 << width) - 1, width) for gap, width in zip(block, widths)])
        table += struct.pack("<IH", indices[min(start + 4096, len(gaps)) - 1] + 1, len(body) | own << 15)
        bodies += body
    return (table if len(gaps) > 4096 else varint(shape.universe - indices[-1] - 1)) + bodies


def encode_delta_pfor(indices, shape, fields):
    gaps, heads, bodies = gaps_of(indices), b"", b""
    for block in (gaps[i:i + 128] for i in range(0, len(gaps), 128)):
        n, top, forms = len(block), max(block).bit_length(), []
        for b in range(top, -1, -1):
            uppers = [(i, (gap >> b) - 1) for i, gap in enumerate(block) if gap >> b]
            w = max((u.bit_length() for _, u in uppers), default=0)
            if uppers and (w > 31 or b + w > 32):
                continue
            low = pack_bits([(gap & (1 << b) - 1, b) for gap in block])
            if len(uppers) <= n // 8:
                forms.append((b, w, len(uppers), low + pack_bits([(i | u << log2_ceil(n), log2_ceil(n) + w) for i, u in uppers])))
            else:
                bitmap = pack_bits([(gap >> b > 0, 1) for gap in block])
                forms.append((b, w, 31, low + bitmap + pack_bits([(u, w) for _, u in uppers])))
        b, w, c, body = min(forms, key=lambda form: len(form[3]))
        heads += (b | w << 6 | c << 11).to_bytes(2, "little")
        bodies += body
    return heads + bodies


def encode_seeded(indices, shape, fields):
    return bytes(8)                       # key 0


def encode_all(indices, shape, fields):
    return b""


def encode_value_raw(values, shape, fields):
    return b"".join(v.to_bytes(VALUE_SIZE[shape.dtype], "little") for v in values)


def tree_sum(numbers):
    """Tiles of 1024 by halving, the tiles in order."""
    total = 0.0
    for start in range(0, len(numbers), 1024):
        a = numbers[start:start + 1024]
        a += [0.0] * (1024 - len(a))
        h = 512
        while h:
            a = [a[i] + a[i + h] for i in range(h)]
            h //= 2
        total += a[0]
    return total


def f32(x):
    """Rounded to f32; beyond the largest finite number that number."""
    top = largest("f32")
    return to_double(round_to(max(-top, min(top, x)), "f32"), "f32")


def encode_qsgd(values, shape, fields, private_key=0):
    levels, bucket, norms, codes = fields["levels"], fields["bucket"], [], []
    width = 1 + log2_ceil(levels + 1)
    for start in range(0, len(values), bucket):
        numbers = [to_double(v, shape.dtype) for v in values[start:start + bucket]]
        norm = min(f32(math.sqrt(tree_sum([v * v for v in numbers]))), largest(shape.dtype))
        norms.append(struct.pack("<f", norm))
        for i, v in enumerate(numbers, start):
            u = (mix64(private_key + (i + 1) * PHI & MASK64) >> 40) / 2**24
            level = min(levels, math.floor(levels * abs(v) / norm + u)) if norm else 0
            codes.append((2 * level + (v < 0 and level > 0), width))
    return b"".join(norms) + pack_bits(codes)


def encode_fit_poly(values, shape, fields, segments=4):
    """values in decoded order: the non-negative ones from the largest, then the negative ones; or by descending magnitude."""
    numbers = [to_double(v, shape.dtype) for v in values]
    in_order = fields["sign"] == 1
    positives = len(numbers) if in_order else sum(math.copysign(1, v) > 0 for v in numbers)
    signs = [(int(math.copysign(1, v) < 0), 1) for v in numbers]
    numbers = [abs(v) for v in numbers] if in_order else numbers
    sides = numbers[:positives], [-y for y in reversed(numbers[positives:])]
    above, below = (behind_jump(side) if fields["knots"] else 0 for side in sides)
    jump = fields["knots"] == 2
    if jump:
        positives -= above
    out, start = [b"" if in_order else struct.pack("<I", positives)], 0
    if jump:
        out.append(struct.pack("<I", above + below))
        lengths = [n for _, n in fit_poly_segments(positives, len(numbers), above + below)]
    elif fields["knots"]:
        lengths = []
        for side, cut in ((numbers[:positives], (positives - above) * (above > 0)), (numbers[positives:], below)):
            if not side:
                continue
            own = chord_pieces(side, fields["degree"], segments, cut)
            out += [bytes([len(own)])] + [varint(n) for n in own[:-1]]
            lengths += own
    else:
        lengths = [n for _, n in fit_poly_segments(positives, len(numbers))]
    for n in lengths:
        ys, start = numbers[start:start + n], start + n
        out += [struct.pack("<H", c) if jump else struct.pack("<f", c) for c in gram_fit(ys, fields["degree"], "bf16" if jump else None)]
    return b"".join(out) + (pack_bits(signs) if in_order else b"")


def behind_jump(ys):
    """How many of a falling curve, the last ones, lie behind a jump. (The library looks at one in many of more than 1365.)"""
    n = len(ys)
    if n < 2:
        return 0
    begin = n // 4
    slope = (ys[-1] - ys[begin]) / (n - 1 - begin)
    off = [ys[x] - (ys[begin] + slope * (x - begin)) for x in range(begin, n)]
    best = begin + off.index(max(off))
    return n - 1 - best if off[best - begin] > ys[best] / 8 else 0


def gram_fit(ys, degree, dtype=None):
    """dtype: coefficients as bit patterns of that type, else as numbers that are f32."""
    n, out = len(ys), []
    us = [(2 * x - (n - 1)) / n for x in range(n)]
    before, now, norm = [0.0] * n, [1.0] * n, float(n)
    for j in range(min(degree, n - 1) + 1):
        if j == 1:
            before, now = now, us
        elif j > 1:
            before, now = now, [gram(u, n, j - 1, p, b) for u, p, b in zip(us, now, before)]
        if j:
            norm *= gram_b(n, j)
        c = tree_sum([y * p for y, p in zip(ys, now)]) / norm
        out.append(round_to(max(-largest(dtype), min(largest(dtype), c)), dtype) if dtype else f32(c))
    return out


def chord_pieces(side, degree, segments, jump=0):
    """Lengths of the pieces of a side, cut at a jump, if there is one, and at the largest distance from a chord."""
    def knot(begin, end):
        """(-distance, begin, end, where to cut)"""
        slope = (side[end - 1] - side[begin]) / max(1, end - begin - 1)
        cuts = [(-(side[begin + x] - (side[begin] + slope * x))**2, begin, end, begin + x)
                for x in range(degree + 1, end - begin - degree)]
        return min(cuts, default=(0.0, begin, end, begin))
    pieces = [knot(0, jump), knot(jump, len(side))] if jump and segments > 1 else [knot(0, len(side))]
    while len(pieces) < segments and min(pieces)[0] < 0:
        worst = min(pieces)
        pieces.remove(worst)
        _, begin, end, at = worst
        pieces += [knot(begin, at), knot(at, end)]
    return [end - begin for _, begin, end, _ in sorted(pieces, key=lambda p: p[1])]


def encode_fit_dexp(values, shape, fields):
    """The mean of each side, but for two points or more a second term that falls from one end by half of it a point."""
    numbers, out = [to_double(v, shape.dtype) for v in values], []
    in_order = fields["sign"] == 1
    positives = len(numbers) if in_order else sum(math.copysign(1, v) > 0 for v in numbers)
    for side in [numbers] if in_order else [numbers[:positives], numbers[positives:]]:
        ys, n = [abs(v) if in_order else v for v in side], max(1, len(side))
        falls = [2.0**-x for x in range(n)] if not ys or abs(ys[0]) > abs(ys[-1]) else [2.0**(x + 1 - n) for x in range(n)]
        mean, slope = sum(ys) / n, 0.0
        if n > 1:
            middle = sum(falls) / n
            slope = sum((y - mean) * (f - middle) for y, f in zip(ys, falls)) / sum((f - middle)**2 for f in falls)
            mean -= slope * middle
        out.append(struct.pack("<4f", f32(mean), 0, f32(slope), 0 if not slope else -n / 2 if falls[0] > falls[-1] else n / 2))
    signs = pack_bits([(int(math.copysign(1, v) < 0), 1) for v in numbers]) if in_order else b""
    return (b"" if in_order else struct.pack("<I", positives)) + b"".join(out) + signs


def encode_rank_fit(values, shape, fields):
    """Levels uniform in the logarithm between the extremes, which degree >= 1 represents."""
    numbers, levels = [to_double(v, shape.dtype) for v in values], 1 << fields["bits"]
    logs = [math.log2(abs(v)) for v in numbers if v] or [0.0]
    step = (max(logs) - min(logs)) / max(1, levels - 1)
    size = min(fields["degree"] + 1, levels)
    coefficients = ([(max(logs) + min(logs)) / 2, levels * step / 2] + [0.0] * 6)[:size]
    table = [to_double(x, shape.dtype) for x in rank_fit_levels([f32(c) for c in coefficients], fields, shape.dtype)]
    codes = [min(range(levels), key=lambda i: (abs(table[i] - abs(v)), -i)) for v in numbers]
    return (struct.pack(f"<{size}f", *coefficients) + pack_bits([(int(math.copysign(1, v) < 0), 1) for v in numbers])
            + pack_bits([(code, fields["bits"]) for code in codes]))


def encode_half(values, shape, fields):
    return struct.pack(f"<{len(values)}H", *(convert(v, shape.dtype, HALVES[fields["type"]]) for v in values))


def encode_sketch(values, shape, fields, buckets=256):
    numbers = [to_double(v, shape.dtype) for v in values]

    def key(v):
        return math.copysign(1, v), v                     # -0 before +0

    ordered, starts = sorted(numbers, key=key), []
    m, n = sum(math.copysign(1, v) < 0 for v in numbers), len(numbers)
    low = (buckets * m + n // 2) // n
    low = max(1, min(buckets - 1, low)) if 0 < m < n else low
    for side, parts in ((ordered[:m], low), (ordered[m:], buckets - low)):
        parts = min(parts, len(side))
        for b in range(parts):
            start = key(side[len(side) * b // parts])
            starts += [start] if start not in starts[-1:] else []
    codes = [sum(start <= key(v) for start in starts) - 1 for v in numbers]
    groups = [[] for _ in starts]
    for v in ordered:
        groups[sum(start <= key(v) for start in starts) - 1].append(v)
    means = []
    for group in groups:
        sizes = [abs(v) for v in group]
        means.append(math.copysign(f32(max(min(sizes), min(max(sizes), tree_sum(sizes) / len(sizes)))), group[0]))
    return bytes([len(means) - 1]) + struct.pack(f"<{len(means)}f", *means) + bytes(codes)


def encode_three_lc(values, shape, fields, sparsity=1.0):
    numbers = [to_double(v, shape.dtype) for v in values]
    scale = f32(max(abs(v) for v in numbers) * sparsity)
    digits = [1 + (v != 0 and abs(v) >= scale / 2) * (1 if v > 0 else -1) for v in numbers]
    digits += [1] * (-len(digits) % 5)
    packed = bytes(sum(d * 3**(4 - k) for k, d in enumerate(digits[i:i + 5])) for i in range(0, len(digits), 5))
    for run in range(14, 1, -1):
        packed = packed.replace(b"\x79" * run, bytes([241 + run]))
    return struct.pack("<f", scale) + packed


def encode_natural(values, shape, fields, private_key=0):
    """private_key None: to nearest."""
    def u(i):
        return (mix64(private_key + (i // 2 + 1) * PHI & MASK64) >> 32 * (i % 2) & MASK32) >> 9

    numbers = [to_double(v, shape.dtype) for v in values]
    max_number = max(map(abs, numbers))
    highest = max(104, 128 + math.frexp(max_number)[1] - 1) if max_number else 104
    codes = []
    for i, v in enumerate(numbers):
        # |v| as a fraction and an exponent; below the smallest power in units of that.
        e = max(math.frexp(v)[1] - 1, highest - 253) if v else highest - 253
        power = math.ldexp(1.0, e)
        c, p = (e + 254 - highest, abs(v) / power - 1) if abs(v) >= power else (0, round(abs(v) / power * 2**23) / 2**23)
        codes.append(c + (p + (0.5 if private_key is None else u(i) / 2**23) >= 1) + 128 * (math.copysign(1, v) < 0))
    return bytes([highest, *codes])


DYNAMIC_TREE = [dynamic_tree_entry(c) for c in range(128)]


def encode_dynamic_tree(values, shape, fields):
    numbers = [to_double(v, shape.dtype) for v in values]
    scale = max(map(abs, numbers))
    middles = [(a + b) / 2 for a, b in zip(DYNAMIC_TREE, DYNAMIC_TREE[1:])]
    ys = [f32(abs(v) / scale) if scale else 0.0 for v in numbers]    # (of f32s, a quotient in f64 is far enough from a tie)
    return struct.pack("<f", scale) + bytes(sum(m <= y for m in middles) + 128 * (math.copysign(1, v) < 0) for v, y in zip(numbers, ys))


def encode_inceptionn(values, shape, fields):    # (classes by exponent follow from a parameter that is not sent)
    tags, shorts, longs, raws = [], b"", b"", b""
    size, unit = VALUE_SIZE[shape.dtype], math.ldexp(1.0, -fields["fraction"])
    for bits in values:
        v = to_double(bits, shape.dtype)
        q = round(abs(v) / unit) if abs(v) < 1 else 2**15    # to nearest, ties to even
        tag = 0 if q == 0 else 1 if q <= 127 else 2 if q <= 32767 and size == 4 else 3
        sign = math.copysign(1, v) < 0
        shorts += bytes([q | sign << 7]) if tag == 1 else b""
        longs += struct.pack("<H", q | sign << 15) if tag == 2 else b""
        raws += bits.to_bytes(size, "little") if tag == 3 else b""
        tags.append((tag, 2))
    return pack_bits(tags) + shorts + longs + raws
def encode_sign(values, shape, fields):
    numbers, means = [to_double(v, shape.dtype) for v in values], b""
    below, other = (tree_sum([max(0.0, side * v) for v in numbers]) for side in (-1, 1))
    count = sum(v < 0 for v in numbers)
    if fields["means"] == 1:
        means = struct.pack("<f", (below + other) / len(numbers))
    if fields["means"] == 2:
        rest = len(numbers) - count
        means = struct.pack("<ff", below / count if count else 0, other / rest if rest else 0)
    return means + pack_bits([(int(v < 0), 1) for v in numbers])


def encode_ternary(values, shape, fields, clip=2.5, private_key=0):
    numbers = [to_double(v, shape.dtype) for v in values]
    scale, n = max(abs(v) for v in numbers), len(numbers)
    mean = tree_sum(numbers[:]) / n
    clipped = clip * math.sqrt(tree_sum([(v - mean) * (v - mean) for v in numbers]) / n)
    clipped = to_double(round_to(min(clipped, largest(shape.dtype)), shape.dtype), shape.dtype)
    scale = min(scale, clipped) if clipped else scale
    digits = [1 + (abs(v) > (mix64(private_key + (i + 1) * PHI & MASK64) >> 40) / 2**24 * scale) * (1 if v > 0 else -1)
              for i, v in enumerate(numbers)]
    digits += [1] * (-n % 5)
    return struct.pack("<f", scale) + bytes(sum(d * 3**(4 - k) for k, d in enumerate(digits[i:i + 5])) for i in range(0, len(digits), 5))


def encode_split_levels(levels, m):
    c = log2_ceil(m)
    s, pairs = (1 << c) - m, [divmod(level, m) for level in levels]
    low = [(r if r < s else r + s >> 1, max(c, 1) - 1) for _, r in pairs if m > 1]
    extras = [(r + s & 1, 1) for _, r in pairs if m > 1 and r >= s]
    return pack_bits(low) + pack_bits([bit for q, _ in pairs for bit in [(0, 1)] * q + [(1, 1)]]) + pack_bits(extras)


def encode_runs(levels):
    units = [i for i, level in enumerate(levels) for _ in range(level)]
    return encode_split_levels([b - a for a, b in zip([0] + units, units)], level_divisor(len(levels), len(units))) if units else b""


def encode_levels(levels):
    table, bodies = b"", b""
    for start in range(0, len(levels), 4096):
        block = levels[start:start + 4096]
        total, n = sum(block), len(block)
        code = 2 * level_divisor(total, n)
        body = encode_split_levels(block, code // 2)
        if 2 * total < n and len(runs := encode_runs(block)) <= (n + total) // 8:
            code, body = 2 * total + 1, runs
        table += struct.pack("<HH", code, len(body)) if len(levels) > 4096 else varint(code)
        bodies += body
    return table + bodies


def encode_huffman(levels, lengths):
    words, code, before, bits = {}, 0, 0, b""
    for length, level in sorted((length, level) for level, length in enumerate(lengths) if length):
        code <<= length - before
        words[level] = [(bit == "1", 1) for bit in format(code, f"0{length}b")]
        code, before = code + 1, length
    sizes = b""
    for start in range(0, len(levels), 4096):
        block = levels[start:start + 4096]
        strings = [pack_bits([bit for level in block[i:i + 512] for bit in words[level]]) for i in range(0, len(block), 512)]
        body = b"".join(len(string).to_bytes(2, "little") for string in strings[:-1]) + b"".join(strings)
        sizes += len(body).to_bytes(2, "little") if len(levels) > 4096 else b""
        bits += body
    return pack_bits([(length, 4) for length in lengths]) + sizes + bits


def sign_plane(values, shape):
    return pack_bits([(v >> 8 * VALUE_SIZE[shape.dtype] - 1, 1) for v in values])


def magnitudes(values, shape):
    return [abs(to_double(v, shape.dtype)) for v in values]


def encode_uniform_quant(values, shape, fields):
    """On the grid that the values lie on, if they do; else as they are."""
    m = magnitudes(values, shape)
    base = min(m)
    step = min((x - base for x in m if x > base), default=0.0)
    levels = [round((x - base) / step) if step else 0 for x in m]
    head = struct.pack("<Bff", 1, base, step) + sign_plane(values, shape)
    if max(levels) <= 65535 and [base + step * level for level in levels] == m:
        return head + encode_levels(levels)
    return b"\0" + encode_value_raw(values, shape, fields)


def encode_log_quant(values, shape, fields):
    """Where the values are the two levels of a bit, or four of two, with magnitudes that powers of two bound; else as they are."""
    m = magnitudes(values, shape)
    for bits in (1, 2):
        for low in (0.25, 0.5, 1.0, 2.0):
            for high in (2 * low, 4 * low, 16 * low, 64 * low):
                g, table, p = (high / low)**(0.5**(bits + 1)), [], low
                for _ in range(2**bits):
                    table, p = table + [f32(p * g)], p * g * g
                if all(any(abs(x - y) < 1e-6 for y in table) for x in m):
                    levels = [min(range(len(table)), key=lambda i: abs(table[i] - x)) for x in m]
                    return struct.pack("<Bff", 1 | bits << 3, low, high) + sign_plane(values, shape) + encode_levels(levels)
    return b"\0" + encode_value_raw(values, shape, fields)


def encode_lloyd(values, shape, fields, lengths=None):
    """Exactly, where there are few magnitudes; else as they are."""
    m = magnitudes(values, shape)
    table = sorted(set(m))
    if len(table) > 16:
        return b"\0" + encode_value_raw(values, shape, fields)
    levels = [table.index(x) for x in m]
    dtype = "bf16" if all(to_double(round_to(x, "bf16"), "bf16") == x for x in table) else shape.dtype
    head = bytes([1 | 2 * bool(lengths) | (len(table) - 1) << 2 | 64 * (dtype != "bf16")])
    head += b"".join(round_to(x, dtype).to_bytes(VALUE_SIZE[dtype], "little") for x in table)
    return head + sign_plane(values, shape) + (encode_huffman(levels, lengths) if lengths else encode_levels(levels))


def encode_bitpack(order, shape, fields):
    return pack_bits([(position, log2_ceil(max(1, len(order)))) for position in order])


def deflate(data, level=6):
    stream = zlib.compressobj(level, zlib.DEFLATED, -15)
    return stream.compress(data) + stream.flush()


def zstd(data, level=3):
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compress.restype = ctypes.c_size_t
    library.ZSTD_compress.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    out = ctypes.create_string_buffer(len(data) + len(data) // 256 + 64)
    size = library.ZSTD_compress(out, len(out), data, len(data), level)
    return out.raw[:size]


def huffman(data):
    """Lengths by merging the two rarest, flattened until none is above 11; one stream for up to 4096 bytes."""
    counts = {byte: data.count(byte) for byte in sorted(set(data))}
    while True:
        heap = sorted((count, [byte]) for byte, count in counts.items())
        lengths = dict.fromkeys(counts, 0)
        while len(heap) > 1:
            (a, x), (b, y), *heap = heap
            for byte in x + y:
                lengths[byte] += 1
            heap = sorted(heap + [(a + b, x + y)])
        if max(lengths.values(), default=0) <= 11:
            break
        counts = {byte: count // 2 + 1 for byte, count in counts.items()}
    steps, before = [], 0
    last = max(lengths, default=0)
    for byte in range(last + 1):
        d, before = lengths.get(byte, 0) - before, lengths.get(byte, 0)
        s = 2 * d + 1 if d >= 0 else -2 * d
        zeros = s.bit_length() - 1
        steps += [(0, zeros), (1, 1), (s - (1 << zeros), zeros)]
    text = {byte: code for code, byte in huffman_codes({b: n for b, n in lengths.items() if n}).items()}
    parts = [data]
    if len(data) > 4096:
        parts = []
        for block in (data[i:i + 32768] for i in range(0, len(data), 32768)):
            part = (len(block) + 7) // 8
            parts += [block[s * part:(s + 1) * part] for s in range(8)]
    streams = [pack_bits([(int(bit), 1) for byte in part for bit in text[byte]]) for part in parts] if len(counts) > 1 else []
    sizes = b"".join(struct.pack("<H", len(stream)) for stream in streams) if len(data) > 4096 else b""
    coded = bytes([last]) + pack_bits(steps) + sizes + b"".join(streams)
    return varint(2 * len(data) + 1) + coded if len(coded) < len(data) else varint(2 * len(data)) + data


def encode_planes(words, shape, fields, coded=()):
    """Codes the planes of `coded`; a constant one is constant, the others are raw."""
    size, out = VALUE_SIZE[shape.dtype], []
    top = 8 * size - 1
    if shape.dtype in ("f32", "f16", "bf16", "f64"):
        words = [(word << 1 | word >> top) & (2 << top) - 1 for word in words]
    for first in range(0, len(words), 2**18):
        block = words[first:first + 2**18]
        n, planes = len(block), [bytes(word >> 8 * p & 255 for word in block) for p in range(size)]
        modes = [2 if len(set(plane)) == 1 < n else int(p in coded) for p, plane in enumerate(planes)]
        heads = [b"" if mode == 0 else plane[:1] if mode == 2 else coded_plane(plane) for mode, plane in zip(modes, planes)]
        out.append(bytes(modes) + b"".join(plane for mode, plane in zip(modes, planes) if mode == 0) + b"".join(heads))
    return b"".join(struct.pack("<I", len(block)) for block in out[:-1]) + b"".join(out)


def coded_plane(plane):
    names = sorted(set(plane))
    table, n = rans_table({s: plane.count(name) for s, name in enumerate(names)}), len(plane)
    count = 1 if n < 2**16 else 4
    share = -(-n // (64 * count)) * 64
    parts = [plane[k * share:(k + 1) * share] for k in range(count - 1)] + [plane[(count - 1) * share:]]
    strings = [put_rans([names.index(byte) for byte in part], [table] * len(part)) for part in parts]
    return put_rans_table(table) + bytes(names) + b"".join(struct.pack("<I", len(string)) for string in strings) + b"".join(strings)


PACKERS = {"deflate": deflate, "zstd": zstd, "huffman": huffman}
ENCODERS = {("index", "raw"): encode_index_raw, ("index", "golomb"): encode_split(golomb_parameter, True),
            ("index", "rice"): encode_split(rice_parameter, False), ("index", "bloom"): encode_bloom,
            ("value", "raw"): encode_value_raw, ("value", "qsgd"): encode_qsgd, ("value", "fit_poly"): encode_fit_poly,
            ("value", "rank_fit"): encode_rank_fit, ("value", "fit_dexp"): encode_fit_dexp,
            ("value", "half"): encode_half, ("value", "sketch"): encode_sketch, ("value", "three_lc"): encode_three_lc,
            ("index", "bitmap"): encode_bitmap, ("index", "rle"): encode_rle, ("index", "elias_fano"): encode_elias_fano,
            ("index", "delta_varint"): encode_delta_varint, ("index", "delta_bitpack"): encode_delta_bitpack,
            ("index", "gap_huffman"): encode_gap_huffman, ("index", "delta_pfor"): encode_delta_pfor,
            ("index", "seeded"): encode_seeded, ("index", "chunks"): encode_chunks, ("index", "all"): encode_all,
            ("value", "uniform_quant"): encode_uniform_quant, ("value", "log_quant"): encode_log_quant,
            ("value", "lloyd"): encode_lloyd, ("value", "natural"): encode_natural,
            ("value", "dynamic_tree"): encode_dynamic_tree, ("value", "inceptionn"): encode_inceptionn,
            ("value", "sign"): encode_sign, ("value", "ternary"): encode_ternary,
            ("index", "magnitude"): encode_magnitude, ("index", "history"): encode_history_index, ("value", "history"): encode_history_value, ("value", "ulp"): encode_changes(ulp_number),
            ("value", "xor"): encode_changes(lambda old, new, dtype: old ^ new),
            ("value", "planes"): encode_planes, ("order", "bitpack"): encode_bitpack}


def run_list(stages, what, shape):
    data = ENCODERS["index" if stages[0].codec.role == "index" else stages[0].codec.role,
                    stages[0].codec.name](what, shape, stages[0].fields, **stages[0].fields.get("choices", {}))
    for s in stages[1:]:
        data = PACKERS[s.codec.name](data)
    return data


# ---- plan ----

def stage(role, name, **fields):
    """fields: those of the wire; `choices`: what an encoder chooses."""
    codec = CODECS[role, IDS[role, name]]
    return Stage(codec, {**{name: default for name, _, _, default in codec.fields}, **fields})


def entry(dtype, value, index, order=(), width=1, carries=False, block=1, patch=False, transform=None):
    return Entry(dtype, width, carries, list(value), list(order), list(index), block, patch, transform)


def stage_bytes(s):
    wire = [(s.fields[name], default) for name, _, _, default in s.codec.fields]
    while wire and wire[-1][0] == wire[-1][1]:
        wire.pop()
    data = b"".join(varint(value) for value, _ in wire)
    number = IDS[s.codec.role, s.codec.name] * 2 + bool(wire)
    return varint(number) + (bytes([len(data)]) + data if wire else b"")


def entry_bytes(e):
    kind = {name: number for number, name in WORDS.items()}[e.dtype]
    kind |= 16 * e.carries | 32 * (e.width != 1) | 64 * e.patch | 128 * (e.transform is not None)
    block = [stage("index", "block", log2_size=e.block.bit_length() - 1)] if e.block > 1 else []
    head = bytes([len(e.value) | len(block + e.index) << 3 | len(e.order) << 6, kind])
    head += varint(e.width) if e.width != 1 else b""
    if e.transform:
        head += bytes([16 | e.transform[0].bit_length() - 1]) + varint(e.transform[1])
    return head + b"".join(map(stage_bytes, e.value + e.order + block + e.index))


# ---- rows ----

@dataclass
class EncodedRow:
    """The facts for a header, and the payload, padded. Any of them may be falsified."""
    entry: Entry
    mode: int
    universe: int
    count: int
    support: int                  # as stored
    value: int = 0                # sizes as stored: 0 for a list of fixed size
    order: int = 0
    index: int = 0
    continues: bool = False
    payload: bytes = b""


def encode_row(e, universe, row, mode=0, indices=None, continues=False, base=None, checks=None, history=None):
    """indices: those that go in; without it all that row holds, and of blocks all elements of a block that holds any.
    base: of a patch all words that the receiver has; row: what becomes of some. checks: the two, falsified."""
    width = e.width

    def at(i):
        return row.get(i, base[i * width:(i + 1) * width] if e.patch else [0] * width)
    keys = sorted(row if indices is None else indices)
    blocks = sorted({k // e.block for k in keys})
    if indices is None and mode == 0:
        keys = expand(blocks, e.block, universe)
    count = len(keys)
    out = EncodedRow(e, mode, universe, count, 0 if mode == 2 else count, continues=continues)
    shape = Shape(universe, count, count, width, e.dtype, e.carries, base, history)
    if mode == 2:
        out.payload = encode_value_raw([v for i in range(universe) for v in at(i)], shape, {})
    elif count:
        index = None
        if mode == 0 and replaces(e):
            index = run_list(e.index, blocks, in_blocks(shape, e.block))
            keys = expand(SUPPORTS[e.index[0].codec.name](blocks, in_blocks(shape, e.block), e.index[0].fields), e.block, universe)
            out.support = shape.support = len(keys)
        values, all_words = [v for i in keys for v in at(i)], shape.base
        shape.base = base and [word for i in keys for word in base[i * width:(i + 1) * width]]
        shape.history = history and [h for i in keys for h in history[i * width:(i + 1) * width]]
        order = b""
        if e.value[0].codec.reorders:
            numbers = [to_double(v, e.dtype) for v in values]
            # the order of the curve fits; sorted() is stable, so ties ascend
            if e.value[0].fields["sign"] == 1:
                numbers = [abs(v) for v in numbers]
            permutation = sorted(range(len(keys)), key=lambda i: (math.copysign(1, numbers[i]) < 0, -numbers[i]))
            values = [values[i] for i in permutation]
            if e.carries:
                keys = [keys[i] for i in permutation]
            else:
                order = run_list(e.order, permutation, shape)
        value = run_list(e.value, values, shape)
        shape.base, shape.history = all_words, history
        if index is None:
            index = encode_index_raw(keys, shape, {}) if mode == 1 else run_list(e.index, blocks if e.block > 1 else keys, in_blocks(shape, e.block))
        out.value = 0 if is_fixed(e.value) else len(value)
        out.order = 0 if is_fixed(e.order) else len(order)
        out.index = 0 if is_fixed(e.index) or mode == 1 else len(index)
        out.payload = value + order + index
    if e.patch:
        result = [word for i in range(universe) for word in at(i)]
        out.payload = struct.pack("<QQ", *(checks or (check_of_words(words, e.dtype) for words in (base, result)))) + out.payload
    out.payload += bytes(-len(out.payload) % 4)
    return out


def bloom_support(index, shape, fields):
    """The support that decode finds in a filter: the size of p0's is not known before."""
    if fields["policy"] == 1:
        m = bloom_bits(shape, fields)
        return [i for i in range(shape.universe) if all(index[b // 8] >> b % 8 & 1 for b in bloom_places(i, m, fields))]
    return decode_bloom(index, shape, fields)


def seeded_support(keys, shape, fields):
    """The support of key 0, a tenth of the universe."""
    return decode_seeded(bytes(8), replace(shape, support=max(1, shape.universe // 10)), {})


SUPPORTS = {"bloom": lambda keys, shape, fields: bloom_support(encode_bloom(keys, shape, fields), shape, fields), "seeded": seeded_support, "all": lambda keys, shape, fields: list(range(shape.universe))}


# ---- frames, field by field ----

def seal(header, payload=b"", whole=True, extra=b""):
    """Pads the header and writes its check. whole: the check covers the payload."""
    header += bytes(-len(header) % 4)
    covered = without_check(header + (payload if whole else b""))
    return header[:4] + struct.pack("<Q", check(covered)) + header[12:] + payload + extra


def short_frame(row, flags=SHORT, version=1, magic=b"DR", plan=None, support=None, sizes=None, payload=None, behind=b"", size_bytes=None):
    """Every argument but row falsifies one field; behind: bytes behind the last field, before the padding. size_bytes: 2 or 3."""
    e = row.entry
    width = size_bytes or (2 if max(row.count, row.support, row.value, row.order, row.index) < 65536 else 3)
    flags |= 64 if width == 2 else 0
    if support is None:
        support = row.support.to_bytes(width, "little") if replaces(e) else b""
    if sizes is None:
        sizes = b"".join(size.to_bytes(width, "little") for stages, size in
                         ((e.value, row.value), (e.order, row.order), (e.index, row.index)) if not is_fixed(stages))
    header = magic + bytes([version, flags | row.mode << 4]) + bytes(8)
    header += row.universe.to_bytes(3, "little") + row.count.to_bytes(width, "little")
    header += (entry_bytes(e) if plan is None else plan) + support + sizes + behind
    return seal(header, row.payload if payload is None else payload)


def general_frame(rows, flags=0, version=1, tag=None, n_rows=None, status=0, zero=0, plan=None, table_size=None, widths=None,
                  info=None, checks=None, whole=None, payload=None, behind=b""):
    """widths: [row info, universe, count, support, value, order, index, 0]; info: the row info column, as numbers."""
    n_rows = len(rows) if n_rows is None else n_rows
    table = []
    for row in rows:
        if entry_bytes(row.entry) not in table:
            table.append(entry_bytes(row.entry))
    if info is None:
        info = [row.mode | 4 * row.continues | table.index(entry_bytes(row.entry)) << 3 for row in rows]
    columns = [info, [r.universe for r in rows], [r.count for r in rows],
               [r.support for r in rows] if any(replaces(r.entry) for r in rows) else [0],
               [r.value for r in rows], [r.order for r in rows], [r.index for r in rows], []]
    if widths is None:
        widths = [(max(column, default=0).bit_length() + 7) // 8 for column in columns]
        widths[0], widths[1] = max(1, widths[0]), max(1, widths[1])
        widths[3] = max(any(replaces(r.entry) for r in rows), widths[3])
    plan = b"".join(table) if plan is None else plan
    header = b"DR" + bytes([version, flags | (TAG if tag is not None else 0)]) + bytes(8)
    header += struct.pack("<IBBHI", n_rows, status, zero, len(plan) if table_size is None else table_size,
                          sum(w << 4 * i for i, w in enumerate(widths)))
    header += struct.pack("<Q", tag) if tag is not None else b""
    header += plan
    if n_rows != 1:
        header += b"".join(struct.pack("<Q", c) for c in ([check(r.payload) for r in rows] if checks is None else checks))
    for column, width in zip(columns, widths):
        header += b"".join(n.to_bytes(width, "little") for n in column) if width else b""
    payload = b"".join(r.payload for r in rows) if payload is None else payload
    return seal(header + behind, payload, n_rows == 1 if whole is None else whole)


def status_frame(status, message, tag=None, flags=STATUS, **fields):
    return general_frame([], flags, tag=tag, status=status, plan=message, widths=fields.pop("widths", [0] * 8), **fields)


def encode(tensors, plan, tag=None, short=None, segment=None, mode=0, is_list=False, bases=(), histories=()):
    """tensors: [(universe, row)]; bases, histories: of patches, words of each and their bytes; segment: rows of a segment at most; short: None for where it is allowed."""
    rows = []
    for k, (universe, row) in enumerate(tensors):
        step = segment or max(1, universe)
        for start in range(0, max(1, universe), step):
            part = {i - start: v for i, v in row.items() if start <= i < start + step}
            n = min(step, universe - start)
            base = bases[k][start * plan.width:(start + n) * plan.width] if plan.patch else None
            history = histories[k][start * plan.width:(start + n) * plan.width] if histories else None
            rows.append(encode_row(plan, n, part, mode, continues=start > 0, base=base, history=history))
    flags = LIST if is_list else 0
    if short is None:
        short = len(rows) == 1 and tag is None and rows[0].universe < 2**24 and len(short_header(rows[0])) <= 28
    return short_frame(rows[0], SHORT | flags) if short else general_frame(rows, flags, tag=tag)


def short_header(row):
    return short_frame(replace(row, payload=b""))
