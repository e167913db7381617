"""The sizes that tests of correctness go through, a list for each operation. Nothing but Python: a
bench, a script and any framework can read them."""

from itertools import product

_SIZES = (1, 15, 16, 128, 130, 144, 257, 400)

# Matrices of all sizes in vectors and not; stacks; without elements.
TRANSPOSES = (
    *product(_SIZES, _SIZES),
    *((3, 65, 31), (2, 3, 16, 5), (3, 256, 384), (5, 144, 272), (4, 131, 77), (40, 8, 136)),
    *((2, 3, 256, 384), (0, 5), (5, 0), (0, 3, 4), (3, 0, 4)),
)

# Vectors of one block of threads and of several.
DOTS = (0, 1, 127, 128, 1000, 8192, 8193, 70_001, 100_003)

# Batch, tokens, heads, head_dim: of Qwen3, ragged ones, one pair, heads of several rounds.
ROTARY = (
    (1, 300, 32, 128),
    (2, 65, 4, 128),
    (3, 7, 5, 80),
    (2, 9, 3, 50),
    (1, 1, 1, 2),
    (1, 3, 130, 256),
    (1, 20_001, 1, 64),
)

# Whole tiles and parts of them, vectors that fit and others; nothing.
CAST_MANY = (
    (256, 384),
    (130, 200),
    (3, 136, 272),
    (131, 77),
    (1, 7),
    (1, 8),
    (5, 64, 128),
    (2, 0, 16),
    (1000, 520),
)

# Casts with reductions of columns: whole tiles and ragged ones, in vectors and not; more rows than
# groups of threads that add them; wider than what is taken at a time.
COLUMNS = ((131, 600), (256, 512), (129, 77), (1, 128), (3000, 392))

# Casts of activations: ragged, in vectors. Beside it on a GPU: whole tiles; not in vectors; one
# row; rows that no block holds.
ACTIVATIONS = ((131, 200),)
ACTIVATIONS_ON_GPU = ((256, 512), (130, 75), (1, 128))
WIDE_ACTIVATIONS = ((3, 40_000),)

# Their reductions of columns on a GPU: halves that are whole blocks of columns, which tiles take
# together, and others.
ACTIVATED_COLUMNS = ((300, 256), (131, 72), (130, 75))

# Casts whose largest magnitudes are given: parts of these are compared with the whole.
AMAX = ((0, 130), (1, 1), (129, 77), (256, 512), (264, 400), (1000, 24), (40, 20_000))
# Beside them on a GPU: more rows than run at one time, and rows that no block of threads holds.
WIDE_COLUMNS = ((20_000, 40), (70, 40_000))

# Rows in groups: sizes of the groups, rows behind them, and columns, in whole vectors and not.
PARTITIONS = (
    ((256, 128, 384), 0, 512),
    ((5, 0, 140, 1, 128, 0, 127), 60, 392),
    ((0, 0, 300), 1, 77),
    ((3,) * 40, 9, 136),
    ((0,), 130, 64),
    ((1000,), 24, 264),
    ((0, 17, 129), 40, 1),
)

# Stacks of matrices, and rows and columns of each: an even number of tiles below each other, an odd
# one; not in whole tiles; not in whole vectors; one; many; without elements.
STACKS = (
    (3, 256, 384),
    (4, 384, 128),
    (5, 136, 272),
    (3, 131, 77),
    (2, 150, 264),
    (1, 200, 144),
    (40, 8, 136),
    (7, 1, 1),
    (2, 0, 16),
    (3, 16, 0),
)

# The shape of logits, experts last, and choices of a token: experts of each number that lanes hold;
# one token, and none.
TOP_K = (
    ((50, 64), 6),
    ((3, 7, 256), 8),
    ((5, 16), 2),
    ((1, 128), 8),
    ((33, 384), 8),
    ((5, 1024), 32),
    ((0, 32), 1),
    ((4, 1000), 31),
)

# Tokens, choices of each, experts: one span and several; every number of counters.
SORTS = (
    (0, 4, 8),
    (1, 1, 1),
    (60, 5, 40),
    (64, 6, 64),
    (2048, 1, 8),
    (2049, 1, 256),
    (4096, 8, 128),
    (3001, 7, 384),
    (16384, 8, 256),
    (20_000, 2, 1024),
    (9999, 5, 2048),
    (70_000, 8, 160),
)

# Tokens, slots of each, rows and columns: rows that threads hold and that none do; in vectors, and
# element by element; without rows or tokens.
COMBINES = (
    (20, 4, 80, 64),
    (300, 8, 500, 2048),
    (40, 1, 60, 7168),
    (9, 6, 30, 77),
    (5, 3, 7, 40_000),
    (0, 2, 4, 8),
    (3, 2, 0, 64),
)

# Products with FP8 weights, M, N and K: of few rows of any type, of many in 16 bits; ragged;
# without depth.
WEIGHT_ONLY_FEW = ((1, 1, 1), (1, 300, 257), (3, 5, 1), (16, 130, 128), (2, 1, 1000), (2, 5, 0))
WEIGHT_ONLY_MANY = (
    *((17, 5, 1), (130, 129, 128), (64, 1, 700)),
    *((130, 40, 260), (33, 260, 300), (33, 4, 0)),
)
# Beside them on a GPU: K of several steps; tiles of 32, 64 and 128 rows; K that warps share, or
# blocks.
WEIGHT_ONLY_FEW_ON_GPU = (
    *((1, 200, 1040), (2, 64, 128), (3, 300, 2064), (4, 37, 16), (7, 200, 1040)),
    *((8, 37, 16), (9, 300, 2064), (16, 130, 5)),
)
WEIGHT_ONLY_MANY_ON_GPU = (
    *((17, 130, 400), (64, 520, 656), (100, 300, 301), (129, 264, 144)),
    *((300, 392, 1024), (40, 1030, 2064), (70, 2100, 4111)),
)
