import math

import numpy as np
import pytest
from scipy import stats

from flwr_vertical.crypto import ckks_context, ckks_products
from flwr_vertical.crypto.ckks_products import (
    HIDING_BITS,
    POLY_MODULUS_DEGREE,
    RMS_LIMIT,
    SLOTS,
    blind,
    cross_products,
    encrypt_columns,
    generate_product_keys,
    open_blinded,
    open_products,
    unblind,
)
from flwr_vertical.errors import DataError, FixedPointOverflowError, ProtocolError

ts = pytest.importorskip("tenseal")

HEADER = 24


@pytest.fixture(scope="module")
def keys():
    return generate_product_keys()


def products(keys, A, B):
    ciphertexts = cross_products(keys.public, encrypt_columns(keys.public, A), B)
    return open_products(keys.secret, ciphertexts, (A.shape[1], B.shape[1]))


def standardised(seed, n, p):
    X = np.random.default_rng(seed).normal(size=(n, p))
    return X / np.sqrt(np.mean(X**2, axis=0))


SHAPES = [
    (1, 2, 3), (2, 1, 1), (10, 3, 2), (1000, 2, 4), (SLOTS, 2, 2), (SLOTS + 1, 2, 1),
    (3 * SLOTS - 5, 1, 3), (5, 0, 3), (5, 3, 0), (100_003, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("n", "p", "q"), SHAPES)
def test_equal_to_numpy(keys, n, p, q):
    A, B = standardised(1, n, p), standardised(2, n, q)
    total = products(keys, A, B)
    assert total.shape == (p, q)
    np.testing.assert_allclose(total, A.T @ B, rtol=0, atol=1e-7 * n)


def test_rows_and_blocks_that_a_party_lacks(keys):
    """Zeros are what SEAL would refuse to multiply by."""
    n = 3 * SLOTS + 7
    A, B = standardised(1, n, 3), standardised(2, n, 3)
    A[:SLOTS] = 0
    A[:, 1] = 0
    B[SLOTS : 2 * SLOTS] = 0
    B[3 * SLOTS :, 0] = 0
    B[:, 2] = 0
    B[5, 2] = 1e-200
    np.testing.assert_allclose(products(keys, A, B), A.T @ B, rtol=0, atol=1e-7 * n)
    np.testing.assert_allclose(products(keys, A, 0 * B), 0, atol=1e-7 * n)


@pytest.mark.parametrize("n", [1, 64, 4096, 8192])
def test_columns_at_the_limit(keys, n):
    A, B = np.full((n, 1), RMS_LIMIT), np.zeros((n, 2))
    B[:, 0] = -RMS_LIMIT
    B[0, 1] = RMS_LIMIT * math.sqrt(n)  # all in one row
    np.testing.assert_allclose(products(keys, A, B), A.T @ B, rtol=1e-9, atol=1e-6 * n)
    with pytest.raises(FixedPointOverflowError, match=r"up to 128 \(a power of two\)"):
        encrypt_columns(keys.public, 1.5 * A)


def test_integers_bools_and_lists(keys):
    A = np.arange(100, dtype=np.uint8)[:, None] % 7
    B = (np.arange(100) % 2 == 0)[:, None]
    np.testing.assert_array_equal(np.rint(products(keys, A, B)), A.T.astype(int) @ B)
    columns = encrypt_columns(keys.public, [[1], [2]])
    total = open_products(keys.secret, cross_products(keys.public, columns, [[3.0], [4.0]]), (1, 1))
    np.testing.assert_allclose(total, 11, atol=1e-5)


def test_error_is_as_documented_and_totals_are_rounded(keys):
    n = 4097  # the error, as a fraction of n, is largest just above powers of two
    A, B = standardised(3, n, 6), standardised(4, n, 16)
    total = products(keys, A, B)
    error = (total - A.T @ B) / n
    assert 1e-9 < np.sqrt(np.mean(error**2)) < 4e-8
    assert np.max(np.abs(error)) < 1.3e-7
    grid = 2.0 ** (13 - 32)
    np.testing.assert_array_equal(total / grid, np.rint(total / grid))


def opened_by_hand(keys, words, constants):
    """Return the slots of ``constants + words * key``, which SEAL keeps as values at roots."""
    ring = ckks_products._Ring(keys.secret)
    q, size = ring.primes[0], POLY_MODULUS_DEGREE
    secret = ring.context.data.secret_key().data()
    values = (constants + words * np.array([secret[i] for i in range(size)], dtype=object)) % q

    def dft(a, root):
        if len(a) == 1:
            return a
        even, odd = dft(a[::2], root * root % q), dft(a[1::2], root * root % q)
        twiddles = np.array([pow(root, k, q) for k in range(len(odd))], dtype=object)
        return np.concatenate([even + twiddles * odd, even - twiddles * odd]) % q

    powers = (pow(x, (q - 1) // (2 * size), q) for x in range(2, 100))
    root = next(x for x in powers if pow(x, size, q) == q - 1)
    root = min(pow(root, k, q) for k in range(1, 2 * size, 2))
    order = [int(f"{i:013b}"[::-1], 2) for i in range(size)]
    inverse = pow(root, -1, q)
    coefficients = dft(values[order], inverse * inverse % q)
    unit = pow(size, -1, q)
    coefficients = [int(c) * pow(inverse, k, q) * unit % q for k, c in enumerate(coefficients)]
    centred = np.array([c - q if c > q // 2 else c for c in coefficients], dtype=float)
    angles = np.exp(1j * np.pi * np.arange(size) / size)
    at_roots = np.fft.ifft(centred * angles) * size
    slots = [(pow(3, j, 2 * size) - 1) // 2 for j in range(SLOTS)]
    return at_roots[slots].real


def scaled(keys, slots, n):
    bits = sum(ckks_products._scale_bits(n))
    return slots * ckks_products._Ring(keys.public).primes[1] / 2.0**bits


@pytest.mark.parametrize("n", [pytest.param(700, marks=pytest.mark.slow), 2 * SLOTS + 9])
def test_what_is_blinded_opens_to_uniform_numbers_and_unblinds_to_the_products(keys, n):
    A, B = standardised(3, n, 3), standardised(4, n, 4) * RMS_LIMIT / 2
    ciphertexts = cross_products(keys.public, encrypt_columns(keys.public, A), B)
    rng = np.random.default_rng(7)
    seen, found = [], []
    for _ in range(12):
        blinds = [int.from_bytes(rng.bytes(16), "little") for _ in ciphertexts]
        blinded, pads = blind(keys.public, ciphertexts, blinds)
        opened = open_blinded(keys.secret, blinded)
        seen.append(opened)
        found.append(unblind(keys.public, opened, pads, [n] * 12))
    share = np.concatenate(seen) / 2.0**60
    assert len(np.unique(share)) == share.size
    assert stats.kstest(share, "uniform").pvalue > 1e-6
    plain = open_products(keys.secret, ciphertexts, (3, 4)).reshape(-1)
    # One grid of the release apart at most, whatever the pad.
    assert np.abs(np.array(found) - plain).max() <= 2.0 ** (math.ceil(math.log2(n)) - 32)


def test_a_pad_that_is_not_that_of_the_product_is_noticed(keys):
    A = standardised(3, 100, 1)
    ciphertexts = cross_products(keys.public, encrypt_columns(keys.public, A), A)
    blinded, pads = blind(keys.public, ciphertexts, [2**100])
    opened = open_blinded(keys.secret, blinded)
    with pytest.raises(ProtocolError, match="larger than any can be"):
        unblind(keys.public, opened, [pads[0] + 3 * 2**57], [100])


def test_slots_do_not_reveal_partial_sums(keys, monkeypatch):
    n = 3 * SLOTS
    A, B = standardised(1, n, 1), standardised(2, n, 1)
    partial = (A * B).reshape(3, SLOTS).sum(axis=0)
    whole = []
    shorten = ckks_products._constant_term

    def keep(ring, ciphertext, n_rows):
        message = shorten(ring, ciphertext, n_rows)
        whole.append(np.array([ciphertext[i] for i in range(POLY_MODULUS_DEGREE)], dtype=object))
        return message

    monkeypatch.setattr(ckks_products, "_constant_term", keep)
    columns = encrypt_columns(keys.public, A)
    messages = [cross_products(keys.public, columns, B)[0] for _ in range(2)]
    words = [np.frombuffer(m[HEADER:], dtype="<u8").astype(object) for m in messages]

    # The whole ciphertext would tell all partial sums, so opening by hand works.
    slots = scaled(keys, opened_by_hand(keys, words[0][1:], whole[0]), n)
    np.testing.assert_allclose(slots, partial, atol=1e-3)

    opened = [scaled(keys, opened_by_hand(keys, w[1:], w[0]), n) for w in words]
    for slots in opened:
        assert abs(np.corrcoef(slots, partial)[0, 1]) < 0.1
        assert np.std(slots) > 1e4 * np.std(partial)
    assert abs(np.corrcoef(opened[0], opened[1])[0, 1]) < 0.1
    assert abs(np.corrcoef(words[0][1:].astype(float), words[1][1:].astype(float))[0, 1]) < 0.1


def constant_coefficient(primes, values):
    """Return the mean of the values at all roots, modulo both primes, as a signed integer."""
    size, modulus, result = POLY_MODULUS_DEGREE, primes[0] * primes[1], 0
    for k in range(2):
        residue = sum(values[k * size : (k + 1) * size]) * pow(size, -1, primes[k])
        other = primes[1 - k]
        result += residue * pow(other, -1, primes[k]) % primes[k] * other
    result %= modulus
    return result - modulus if result > modulus // 2 else result


def test_noise_is_drowned(keys, monkeypatch):
    """The noise of the constant coefficient is 2^40 times narrower than the random number."""
    n = SLOTS
    drawn, totals = [], []

    def middle(width):
        drawn.append(width)
        return width // 2

    monkeypatch.setattr(ckks_products.secrets, "randbelow", middle)
    monkeypatch.setattr(
        ckks_products, "_constant_term", lambda ring, total, n: totals.append(total)
    )
    A, B = standardised(1, n, 1), RMS_LIMIT * standardised(2, n, 1) * (1 - 1e-12)
    for _ in range(5):
        cross_products(keys.public, encrypt_columns(keys.public, A), B)

    ring = ckks_products._Ring(keys.secret)
    scale_a, scale_b = (2.0**bits for bits in ckks_products._scale_bits(n))
    plain_a, plain_b = (
        ring.encode(A[:, 0].tolist(), scale_a),
        ring.encode(B[:, 0].tolist(), scale_b),
    )
    both = range(2 * POLY_MODULUS_DEGREE)
    exact = constant_coefficient(ring.primes, [plain_a[i] * plain_b[i] for i in both])
    seal = ring.context.seal_context().data
    decryptor = ring.api.Decryptor(seal, ring.context.data.secret_key())
    noise = []
    for total in totals:
        plain = ring.api.Plaintext()
        decryptor.decrypt(total, plain)
        noise.append(constant_coefficient(ring.primes, [plain[i] for i in both]) - exact)
    (width,) = set(drawn)
    largest = max(map(abs, noise))
    assert largest << HIDING_BITS < width
    # Nor is the bound wide of the mark: it is 24 standard deviations.
    assert largest << HIDING_BITS > width / 24 / 10


def test_random_number_is_there(keys):
    columns = encrypt_columns(keys.public, np.zeros((16, 1)))
    ciphertexts = cross_products(keys.public, columns, np.zeros((16, 50)))
    totals = open_products(keys.secret, ciphertexts, (1, 50)) / 16
    assert 2e-9 < np.std(totals) < 1e-8
    assert len(np.unique(totals)) > 20


def test_sizes(keys):
    (blocks,) = encrypt_columns(keys.public, standardised(1, 2 * SLOTS + 1, 1))
    assert len(blocks) == 3
    assert len(blocks[0]) / SLOTS < 64.1
    (product,) = cross_products(keys.public, [blocks], standardised(2, 2 * SLOTS + 1, 1))
    assert len(product) == HEADER + 8 * (1 + POLY_MODULUS_DEGREE)
    (again,) = encrypt_columns(keys.public, standardised(1, 2 * SLOTS + 1, 1))
    assert blocks[0] != again[0]


def test_keys_in_the_right_place(keys):
    public = ts.context_from(keys.public)
    assert not public.has_secret_key()
    assert not public.has_galois_keys()
    assert not public.has_relin_keys()
    assert repr(keys) == "CkksKeys()"
    for use in (
        lambda key: encrypt_columns(key, np.ones((2, 1))),
        lambda key: cross_products(key, [], np.ones((2, 1))),
    ):
        with pytest.raises(ProtocolError, match="must not leave the arbiter"):
            use(keys.secret)
        with pytest.raises(ProtocolError, match="not a CKKS context"):
            use(b"junk")
        with pytest.raises(ProtocolError, match="generate_product_keys"):
            use(ckks_context.generate_keys().public)
    with pytest.raises(ProtocolError, match="no secret key"):
        open_products(keys.public, [], (0, 0))
    bare = ts.context_from(keys.secret).serialize(save_public_key=False, save_secret_key=True)
    with pytest.raises(ProtocolError, match="no public key"):
        open_products(bare, [], (0, 0))


def test_other_keys_are_noticed(keys):
    other = generate_product_keys()
    ones = np.ones((3, 1))
    columns = encrypt_columns(keys.public, ones)
    ciphertexts = cross_products(keys.public, columns, ones)
    with pytest.raises(ProtocolError, match=r"product 0 .*another key"):
        open_products(other.secret, ciphertexts, (1, 1))
    with pytest.raises(ProtocolError, match=r"block 0 of encrypted column 0 .*another key"):
        cross_products(other.public, columns, ones)
    # Under a forged name the other secret opens random numbers, half of which are out of range.
    name = cross_products(other.public, encrypt_columns(other.public, ones), ones)[0][:HEADER]
    products = cross_products(keys.public, columns, np.ones((3, 40)))
    with pytest.raises(ProtocolError, match="larger than any can be"):
        open_products(other.secret, [name + product[HEADER:] for product in products], (1, 40))


@pytest.mark.parametrize("function", ["encrypt_columns", "cross_products"])
def test_matrices_that_cannot_be_encoded(keys, function):
    def use(matrix):
        if function == "encrypt_columns":
            encrypt_columns(keys.public, matrix, "X", "bank")
        else:
            cross_products(keys.public, [], matrix, "X", "bank")

    for matrix, match in (
        ([1.0, 2.0], "must be a matrix"),
        (np.ones((0, 2)), "at least one row"),
        (np.array([["a"]]), "real numbers"),
        ([[np.nan], [1.0]], "some of its values"),
        ([[np.inf], [1.0]], "some of its values"),
    ):
        with pytest.raises(DataError, match=match) as caught:
            use(matrix)
        assert "'X' of party 'bank'" in str(caught.value)
    matrix = np.ones((100, 3))
    matrix[:, 1] = -128
    with pytest.raises(FixedPointOverflowError) as caught:
        use(matrix)
    size = "128 (a power of two) over 100 rows"
    for part in ("column 1", "'X'", "'bank'", size, "limit", "64", "by 2 or more"):
        assert part in str(caught.value)
    with pytest.raises(FixedPointOverflowError, match="inf"):
        use([[1e300]])


def test_columns_that_do_not_fit(keys):
    public = keys.public
    A = np.ones((SLOTS + 3, 1))
    ((first, second),) = encrypt_columns(public, A)
    ((lone,),) = encrypt_columns(public, A[:3])
    name = first[:HEADER]
    context = ts.context_from(public)
    scale = 2.0 ** ckks_products._scale_bits(len(A))[0]
    short = ts.ckks_vector(context, [1.0] * 5, scale).serialize()
    rescaled = ts.ckks_vector(context, [1.0] * SLOTS, 2.0**40).serialize()
    two = ts.ckks_vector(context, [1.0] * (SLOTS + 1), scale).serialize()
    other = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
    strange = ts.ckks_vector(other, [1.0] * SLOTS, 2.0**40).serialize()
    for columns, match in (
        ([[first]], "column 0 has 1 blocks, .* make 2"),
        ([[first, second], [first, second, second]], "column 1 has 3 blocks"),
        ([[first, lone]], "block 1 of encrypted column 0 is from a column of 3 rows"),
        ([[first, b""]], "block 1 .*not a CKKS ciphertext"),
        ([[first, b"junk" * 100]], "block 1 .*not a CKKS ciphertext"),
        ([[first[:16], second]], "block 0 .*not a CKKS ciphertext"),
        ([[name, second]], "block 0 .*not a CKKS ciphertext"),
        ([[first[:1000], second]], "block 0 .*not a CKKS ciphertext"),
        ([[name + short, second]], "not a CKKS ciphertext of 4096 rows"),
        ([[name + rescaled, second]], "not a CKKS ciphertext of 4096 rows"),
        ([[name + two, second]], "not a CKKS ciphertext"),
        ([[name + strange, second]], "not a CKKS ciphertext"),
    ):
        with pytest.raises(ProtocolError, match=match):
            cross_products(public, columns, A)


def test_products_that_do_not_fit(keys):
    ones = np.ones((3, 1))
    (good,) = cross_products(keys.public, encrypt_columns(keys.public, ones), ones)
    huge = good[:HEADER] + b"\xff" * (len(good) - HEADER)
    for ciphertexts, shape, match in (
        ([good], (1, 2), "need 2 ciphertexts, got 1"),
        ([good, good], (1, 1), "need 1 ciphertexts, got 2"),
        ([good, b"junk"], (1, 2), "product 1 is not"),
        ([good[:HEADER]], (1, 1), "made by cross_products"),
        ([good[:-8]], (1, 1), "made by cross_products"),
        ([good[:-1]], (1, 1), "made by cross_products"),
        ([good + b"1"], (1, 1), "made by cross_products"),
        ([huge], (1, 1), "made by cross_products"),
        ([good[: HEADER - 8] + bytes(8) + good[HEADER:]], (1, 1), "made by cross_products"),
    ):
        with pytest.raises(ProtocolError, match=match):
            open_products(keys.secret, ciphertexts, shape)
