"""Golden vectors of common/lattice.h, from exact rational arithmetic.

    python3 lattice.py > lattice.txt

Nothing here uses floating point: floats are bit patterns, values are fractions.Fraction, and rounding to float32 and
float64 is done below on rationals. One line a case; unit.common.lattice reads them, python.common.test_lattice_vectors
checks that the committed file is what this program prints.

    decode      bits fraction_bits  status q
    norm        n q...              sum (hex)
    multiplier  sum clip unit       ceil_root multiplier
    clip        q multiplier        clipped
    accumulate  n (weight q)...     sum
    bound       cohort weight bound tail    holds
    choose      bits weight_total   status fraction_bits
    mean        sum total unit fraction_bits    bits
"""
import random
import sys
from fractions import Fraction
from math import isqrt

Q_MAX = 2**31 - 1
UNIT = 2**32
random.seed(20261130)


def float_of_bits(bits):
    """The value of a float32 bit pattern, None when it is not finite."""
    exponent, fraction = bits >> 23 & 255, bits & 0x7FFFFF
    if exponent == 255:
        return None
    significand = fraction if exponent == 0 else fraction + 2**23
    value = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - 150)
    return -value if bits >> 31 else value


def decode(bits, fraction_bits):
    value = float_of_bits(bits)
    if value is None:
        return "not_finite", 0
    q = round(value * Fraction(2) ** fraction_bits)  # round() of a Fraction: to nearest, ties to even
    return ("ok", q) if abs(q) <= Q_MAX else ("out_of_range", 0)


def round_binary(value, precision, exponent_min, exponent_max):
    """|value| to `precision` significant bits, nearest even; the unit never goes below 2^exponent_min. None: overflow."""
    value = abs(value)
    if value == 0:
        return Fraction(0)
    power = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** power > value:
        power -= 1
    unit = Fraction(2) ** max(power - precision + 1, exponent_min)
    rounded = round(value / unit) * unit
    return None if rounded >= Fraction(2) ** exponent_max else rounded


def f64(value):
    rounded = round_binary(value, 53, -1074, 1024)
    assert rounded is not None
    return -rounded if value < 0 else rounded


def f32_bits(value, negative):
    rounded = round_binary(value, 24, -149, 128)
    sign = 0x80000000 if negative else 0
    if rounded is None:
        return sign | 0x7F800000
    if rounded < Fraction(2) ** -126:
        return sign | int(rounded * 2**149)
    power = rounded.numerator.bit_length() - rounded.denominator.bit_length()
    if Fraction(2) ** power > rounded:
        power -= 1
    significand = int(rounded / Fraction(2) ** (power - 23))
    return sign | (power + 127) << 23 | (significand - 2**23)


def mean(total_sum, total, unit, fraction_bits):
    divisor = f64(f64(f64(Fraction(total)) * f64(Fraction(unit))) * Fraction(2) ** (fraction_bits - 32))
    return f32_bits(f64(f64(Fraction(total_sum)) / divisor), total_sum < 0)


def ceil_root(n):
    root = isqrt(n)
    return root if root * root == n else root + 1


def multiplier(norm, clip, unit):
    root = ceil_root(norm)
    return unit if root == 0 else min(unit, clip * UNIT // root)


def clip(q, factor):
    magnitude = abs(q) * factor >> 32
    return -magnitude if q < 0 else magnitude


def choose(bits, weight_total):
    for fraction_bits in range(126, -126, -1):
        status, q = decode(bits, fraction_bits)
        if status == "ok" and weight_total * abs(q) < 2**63:
            return "ok", fraction_bits
    return "not_representable", 0


def nearest_bits(value):
    return f32_bits(value, value < 0)


def decode_cases():
    specials = [0, 1, 2, 3, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F000000, 0x3FC00000, 0x40200000,
                0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    for bits in specials:
        for sign in (0, 0x80000000):
            for fraction_bits in (-125, -100, -24, -1, 0, 1, 16, 23, 24, 30, 31, 100, 125, 126):
                yield sign | bits, fraction_bits
    # Halves: k + 1/2 around even and odd k, and one float below and above each.
    for k in (0, 1, 2, 3, 4, 5, 1000, 1001, 2**22 - 1, 2**22):
        for fraction_bits in (-125, -20, 0, 7, 24, 100, 126):
            centre = nearest_bits((k + Fraction(1, 2)) * Fraction(2) ** -fraction_bits)
            for bits in (centre - 1, centre, centre + 1):
                if 0 <= bits < 0x7F800000:
                    yield bits, fraction_bits
                    yield 0x80000000 | bits, fraction_bits
    # The limits: the floats around 2^31 lattice units, on either side; -2^31 itself is out.
    for fraction_bits in (-96, -20, -1, 0, 1, 16, 24, 30, 31, 60, 100, 126):
        at = nearest_bits(Fraction(2) ** (31 - fraction_bits))
        for bits in (at - 2, at - 1, at, at + 1):
            if bits < 0x7F800000:
                yield bits, fraction_bits
                yield 0x80000000 | bits, fraction_bits
    # Subnormals on the finest lattices that still see them, none does above 2^-127.
    for bits in (1, 0x400000, 0x400001, 0x600000, 0x7FFFFF):
        for fraction_bits in (120, 124, 125, 126):
            yield bits, fraction_bits
            yield 0x80000000 | bits, fraction_bits
    for _ in range(1200):
        bits = random.getrandbits(32)
        yield bits, random.randint(-125, 126)
        # and one that lands near the lattice: exponent chosen so that |q| is 2^-3 .. 2^33
        fraction_bits = random.randint(-90, 120)
        exponent = min(max(127 - fraction_bits + random.randint(-3, 33), 0), 254)
        yield (bits & 0x807FFFFF) | exponent << 23, fraction_bits


def random_q():
    return random.choice((random.randint(-Q_MAX, Q_MAX), random.randint(-300, 300), Q_MAX, -Q_MAX, 0, 1, -1))


def norm_cases():
    yield []
    yield [0]
    yield [Q_MAX] * 4
    yield [Q_MAX, -Q_MAX] * 10  # carries into the high limb
    yield [-Q_MAX] * 64
    for _ in range(60):
        yield [random_q() for _ in range(random.randint(1, 40))]


def multiplier_cases():
    for norm in (0, 1, 2, 3, 4, 5, 8, 9, 10, 2**62, 2**64 - 1, 2**64, 2**64 + 1, 2**126 - 1, (2**63 - 1)**2, (2**63 - 1)**2 + 1, (2**32)**2 - 1,
                 (2**32)**2, (2**32)**2 + 1):
        for clip_units in (1, 2, 3, 1000, 2**31 - 1, 2**40, 2**63 - 1):
            for unit in (1, 2**16, UNIT // 3, UNIT, UNIT + 2):
                yield norm, clip_units, unit
    for _ in range(400):
        root = random.getrandbits(random.randint(1, 62))
        norm = max(0, root * root + random.choice((-1, 0, 1, random.getrandbits(20))))
        yield norm, random.getrandbits(random.randint(1, 62)) or 1, random.randint(1, UNIT + 2)


def clip_cases():
    for q in (0, 1, -1, 2, -2, 3, -3, Q_MAX, -Q_MAX, Q_MAX - 1, 1 - Q_MAX):
        for factor in (0, 1, 2**31 - 1, 2**31, 2**31 + 1, UNIT - 1, UNIT, UNIT + 1, UNIT + 2):
            if abs(q) * factor < 2**63:
                yield q, factor
    for _ in range(400):
        yield random_q(), random.randint(0, UNIT)


def accumulate_cases():
    yield [(2**32, Q_MAX)]
    yield [(2**32, -Q_MAX)]
    yield [(1, 5), (1, -5)]
    for _ in range(60):
        yield [(random.randint(1, 2**27), random_q()) for _ in range(random.randint(1, 30))]


def bound_cases():
    limit = 2**63 - 1
    for cohort, weight, bound, tail in ((1, 1, Q_MAX, 0), (2**32, 1, Q_MAX, 0), (2**32, 2, Q_MAX, 0), (1, 2**32 + 2, Q_MAX, 0), (1, 2**32 + 3, Q_MAX, 0),
                                        (3, 5, 7, limit - 105), (3, 5, 7, limit - 104), (2**40, 2**40, 2**40, 0), (1, 1, 1, limit), (1, 1, 0, limit),
                                        (0, 2**63, Q_MAX, 0), (2**63, 2**63, 0, 0), (1, 1, 1, limit + 1), (1, limit, 1, 0), (1, limit + 1, 1, 0),
                                        (2**64 - 1, 2**64 - 1, 2**64 - 1, 0)):
        yield cohort, weight, bound, tail
    for _ in range(200):
        yield random.getrandbits(random.randint(1, 24)), random.getrandbits(random.randint(1, 24)), random.getrandbits(random.randint(1, 24)), random.getrandbits(63)


def choose_cases():
    for bits in (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F7FFFFF, 0x4EFFFFFF, 0x4F000000, 0x7F7FFFFF):
        for total in (1, 2, 3, 1000, 2**31, 2**32, 2**32 + 2, 2**40, 2**59, 2**60 - 1, 2**60, 2**62, 2**63 - 1):
            yield bits, total
    for _ in range(400):
        yield random.randrange(0x7F800000), random.getrandbits(random.randint(1, 63)) or 1


def mean_cases():
    for fraction_bits in (-125, -96, -1, 0, 24, 31, 32, 126):
        for total_sum in (0, 1, -1, 3, -3, 2**24 + 1, 2**53 + 1, -(2**53 + 1), 2**63 - 1, -(2**63 - 1)):
            for total in (1, 3, 10, 2**24 + 1, 2**53 + 1, 2**62 + 1, 2**63 - 1):
                yield total_sum, total, UNIT, fraction_bits
    # Subnormal results, and the edge of overflow.
    for total_sum in (1, 3, 5, 7, 2**10 + 1, -(2**23 + 1), 2**31 - 1):
        for fraction_bits in (100, 120, 126):
            for total in (1, 2**8, 2**22, 2**23, 2**24, 3 * 2**23, 2**24 + 2):
                yield total_sum, total, UNIT, fraction_bits
    for total_sum in (2**56 - 2**31, 2**56 - 2**30, 2**56 - 2**31 - 1, 2**56 - 2**31 + 1, 2**56 - 2**31 - 2**20, 8, 7, 4, -8):
        for fraction_bits in (-125, -72, -71):
            yield total_sum, 1, UNIT, fraction_bits
    for _ in range(1500):
        total_sum = random.getrandbits(random.randint(1, 63)) * random.choice((1, -1))
        total = random.getrandbits(random.randint(1, 63)) or 1
        unit = random.choice((UNIT, UNIT, random.randint(1, UNIT + 2)))
        yield total_sum, total, unit, random.randint(-125, 126)


def main(out):
    for bits, fraction_bits in decode_cases():
        status, q = decode(bits, fraction_bits)
        print(f"decode {bits:08x} {fraction_bits} {status} {q}", file=out)
    for values in norm_cases():
        print("norm", len(values), *values, f"{sum(q * q for q in values):032x}", file=out)
    for norm, clip_units, unit in multiplier_cases():
        print(f"multiplier {norm:032x} {clip_units} {unit} {ceil_root(norm)} {multiplier(norm, clip_units, unit)}", file=out)
    for q, factor in clip_cases():
        print("clip", q, factor, clip(q, factor), file=out)
    for terms in accumulate_cases():
        print("accumulate", len(terms), *(x for term in terms for x in term), sum(w * q for w, q in terms), file=out)
    for cohort, weight, bound, tail in bound_cases():
        print("bound", cohort, weight, bound, tail, int(cohort * weight * bound + tail < 2**63), file=out)
    for bits, total in choose_cases():
        status, fraction_bits = choose(bits, total)
        print(f"choose {bits:08x} {total} {status} {fraction_bits}", file=out)
    for total_sum, total, unit, fraction_bits in mean_cases():
        print(f"mean {total_sum} {total} {unit} {fraction_bits} {mean(total_sum, total, unit, fraction_bits):08x}", file=out)


if __name__ == "__main__":
    main(sys.stdout)
