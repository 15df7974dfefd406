"""Faults in the kernels of sections 8.2.1 and 8.2.2, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 8.2.1
    *faults(
        "ch08_memory/s8_2_1_shared_memory.py",
        "tests/test_ch08_2.py",
        # transpose_naive
        ("y < min(height, (int)blockIdx.y * 32 + 32)", "y < height", "821_a_block_writes_its_own_tile_only"),
        ("if (x < width) out", "if (x <= width) out", "821_every_rung"),
        ("out[(long long)x * height + y] = in", "out[(long long)x * width + y] = in", "821_every_rung"),
        # place
        ("return row * 33 + column; ", "return row * 32 + column; ", "821_counted_as_by_hand"),
        ("(column ^ row);", "(column ^ row / 2);", "821_counted_as_by_hand"),
        ("(column ^ row);", "(column | row);", "821_every_rung"),
        # transpose_tiled
        ("row < 32; row += 8)\n        if (top", "row < 31; row += 8)\n        if (top", "821_every_rung"),
        ("top + row < height && left + lane < width", "left + lane < width", "821_every_rung"),
        (
            "__syncthreads();  // the tile is whole, before",
            "// the tile is whole, before",
            "821_no_tile_is_read_before_it_is_whole",
        ),
        ("if (left + column < width && top + lane", "if (top + lane", "821_every_rung"),
        # transpose_aligned
        ("height % SECTOR ? SECTOR : 0, down", "height % SECTOR ? SECTOR / 2 : 0, down", "821_every_rung"),
        (
            "left = blockIdx.x / down * TILE, top = blockIdx.x % down * TILE - more;",
            "left = blockIdx.x % ((width + TILE - 1) / TILE) * TILE, "
            "top = (int)blockIdx.x / ((width + TILE - 1) / TILE) * TILE - more;",
            "821_blocks_that_run_together_write_whole_rows",
        ),
        ("y < height && left + column < width;", "y < height && left + column <= width;", "821_every_rung"),
        ("more && y >= 0 && y < height && left", "more && y < height && left", "821_every_rung"),
        (" - x % SECTOR * (height % SECTOR) % SECTOR;", ";", "821_a_sector_is_written_by_one_warp_only"),
        ("x % SECTOR * (height % SECTOR) % SECTOR;", "x % SECTOR;", "821_a_sector_is_written_by_one_warp_only"),
        ("if (row < TILE + more) tile", "if (row < TILE) tile", "821_every_rung"),
        (
            "__syncthreads();  // the tile is whole\n    const auto",
            "// the tile is whole\n    const auto",
            "821_no_tile_is_read_before_it_is_whole",
        ),
        ("if (y >= 0 && y < height && x < width) out", "if (y < height && x < width) out", "821_every_rung"),
        # transpose_float4
        (
            "left = blockIdx.x / down * TILE, top = blockIdx.x % down * TILE;",
            "left = blockIdx.x / (down + 1) * TILE, top = blockIdx.x % down * TILE;",
            "821_every_rung",
        ),
        ("if (left + 4 * q < width && top + 4 * p < height)", "if (left + 4 * q < width)", "821_every_rung"),
        ("{v[0].z, v[1].z, v[2].z, v[3].z}", "{v[0].z, v[1].z, v[3].z, v[2].z}", "821_every_rung"),
        (
            "__syncthreads();  // the tile is whole\n    const int quad",
            "// the tile is whole\n    const int quad",
            "821_no_tile_is_read_before_it_is_whole",
        ),
        ("[quad ^ (threadIdx.y + 16 * k) / 4 % 8];", "[quad ^ threadIdx.y / 4 % 8 ^ k % 2];", "821_every_rung"),
        ("width && top + 4 * quad < height)", "width)", "821_every_rung"),
        # transpose_async
        ("inside = y < height && x < width; ", "inside = y < height; ", "821_every_rung"),
        ("fetch(number + gridDim.x, stage ^ 1);", "fetch(number + 1, stage ^ 1);", "821_a_block_takes_many_tiles"),
        ("stage ^= 1) {", "stage ^= 0) {", "821_a_block_takes_many_tiles"),
        (
            "__syncthreads();           // and everybody",
            "// and everybody",
            "821_no_tile_is_read_before_it_is_whole",
        ),
        ("__syncthreads();  // nobody", "// nobody", "821_no_tile_is_read_before_it_is_whole"),
        ("x < width) out[x * height + y] = v[k];", "x < width) out[x * width + y] = v[k];", "821_every_rung"),
        # histogram_global
        ("if (keys[i] < bins) atomicAdd", "if (keys[i] <= bins) atomicAdd", "821_histograms"),
        ("i < n; i += stride)", "i < n - 1; i += stride)", "821_histograms"),
        # histogram_shared
        ("b += blockDim.x) mine[b] = 0;", "b += 2 * blockDim.x) mine[b] = 0;", "821_histograms"),
        ("__syncthreads();  // all counters", "// all counters", "821_no_tile_is_read_before_it_is_whole"),
        ("first < n; first += 4 * stride)", "first < n; first += 5 * stride)", "821_histograms"),
        ("keys[first + k * stride] : bins;", "keys[first + k * stride] : 0;", "821_histograms"),
        ("atomicAdd(&mine[key[k]], 1u);", "mine[key[k]] += 1;", "821_all_keys_alike"),
        ("__syncthreads();  // all have", "// all have", "821_no_tile_is_read_before_it_is_whole"),
        ("if (mine[b]) atomicAdd(&counts[b], mine[b]);", "if (mine[b]) counts[b] = mine[b];", "821_histograms"),
        # the host
        ("{FLOAT4} if height % 4 or width % 4 else", "{FLOAT4} if height % 4 else", "821_every_rung"),
    ),
    # --- 8.2.2
    *faults(
        "ch08_memory/s8_2_2_constant_memory.py",
        "tests/test_ch08_2.py",
        # sums: each of the three is a way into it
        ("8 * (threadIdx.x % distinct)", "8 * (threadIdx.x % 32)", "822_sums"),
        ("k < reads; ++k", "k <= reads; ++k", "822_sums"),
        ("number((first + k) % ENTRIES)", "number((first + k) % 128)", "822_sums"),
        ("if (i >= n) return;", "if (i > n) return;", "822_sums"),
        ("sums(out, n, reads, distinct, [](int at) { return numbers[at]; });", "return;", "822_sums"),
        (
            "sums(out, n, reads, distinct, [=](int at) { return __ldg(from + at); });",
            "sums(out, n, reads, distinct, [=](int at) { return __ldg(from); });",
            "822_sums",
        ),
        (
            "sums(out, n, reads, distinct, [&](int at) { return from.value[at]; });",
            "sums(out, n, reads, 1, [&](int at) { return from.value[at]; });",
            "822_sums",
        ),
        # polynomial
        ("sum[j] = coefficient(TERMS - 1);", "sum[j] = coefficient(TERMS - 2);", "822_polynomial_and_lookup"),
        ("k = TERMS - 2; k >= 0;", "k = TERMS - 2; k > 0;", "822_polynomial_and_lookup"),
        ("fmaf(sum[j], v[j], coefficient(k))", "fmaf(sum[j], v[0], coefficient(k))", "822_polynomial_and_lookup"),
        (
            "if (first + j * blockDim.x < n) y[first + j * blockDim.x] = sum[j];",
            "y[first + j * blockDim.x] = sum[j];",
            "822_polynomial_and_lookup",
        ),
        (
            "const long long first = (long long)blockIdx.x * blockDim.x * 4 + threadIdx.x;\n    float",
            "const long long first = (long long)blockIdx.x * blockDim.x * 3 + threadIdx.x;\n    float",
            "822_polynomial_and_lookup",
        ),
        ("return coefficients[k]; }", "return coefficients[k / 2]; }", "822_polynomial_and_lookup"),
        ("return __ldg(from + k); }", "return __ldg(from + k / 2); }", "822_polynomial_and_lookup"),
        ("return from.value[k]; }", "return from.value[k / 2]; }", "822_polynomial_and_lookup"),
        # lookup
        ("n / 4) v[j] = reint", "n / 4 - 1) v[j] = reint", "822_polynomial_and_lookup"),
        ("number(v[j].z), number(v[j].w)}", "number(v[j].w), number(v[j].z)}", "822_polynomial_and_lookup"),
        ("if (first < n % 4) y", "if (first < n % 4 - 1) y", "822_polynomial_and_lookup"),
        (
            "* blockDim.x * 4 + threadIdx.x;\n    uchar4",
            "* blockDim.x * 5 + threadIdx.x;\n    uchar4",
            "822_polynomial_and_lookup",
        ),
        (
            "lookup(x, y, n, [](int at) { return numbers[at]; });",
            "lookup(x, y, n, [](int at) { return numbers[at / 2]; });",
            "822_polynomial_and_lookup",
        ),
        (
            "lookup(x, y, n, [=](int at) { return __ldg(from + at); });",
            "lookup(x, y, n, [=](int at) { return __ldg(from + at / 2); });",
            "822_polynomial_and_lookup",
        ),
        ("at < ENTRIES; at += blockDim.x", "at < ENTRIES - 1; at += blockDim.x", "822_polynomial_and_lookup"),
        ("__syncthreads();  // the table", "// the table", "822_the_table_is_not_read_before_it_is_whole"),
        # the host
        ('    set_constant("numbers", numbers, stream)\n    d_numbers', "    d_numbers", "822_sums"),
        ("1 + np.count_nonzero(", "np.count_nonzero(", "822_references_by_hand"),
    ),
]
