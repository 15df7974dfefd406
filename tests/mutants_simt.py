"""Deliberate faults in the corpus of kernels: the references of tests/simt_cases must see each of them."""

from __future__ import annotations

from tests.mutants import Mutant


def broken(file: str, case: str, size: object, old: str, new: str) -> Mutant:
    """A fault in a kernel of tests/simt_cases/FILE.py that the case must notice at this size."""
    return Mutant(f"tests/simt_cases/{file}.py", old, new, f"tests/test_simt_kernels.py::test_kernel[{case}-{size}]")


MUTANTS = [
    # elementwise
    broken("elementwise", "saxpy", 33, "y[i] = a * x[i] + y[i];", "y[i] = a * x[i] - y[i];"),
    broken("elementwise", "saxpy", 33, "if (i < n) y[i] = a", "if (i < n - 1) y[i] = a"),
    broken("elementwise", "grid_stride", 1000, "i < n; i += stride)", "i < n; i += stride + 1)"),
    broken("elementwise", "templates", 33, "if (first + k < n) y", "if (first + k + 1 < n) y"),
    broken("elementwise", "struct_parameters", 33, "= -p.position.z;", "= p.position.z;"),
    broken("elementwise", "mandelbrot", "90x61", "(xx, yy) > 4.0f) break", "(xx, yy) > 3.0f) break"),
    broken("elementwise", "monte_carlo_pi", 5000, "key.y += 0xBB67AE85u", "key.y += 0xBB67AE84u"),
    broken("elementwise", "monte_carlo_pi", 33, "state ^= state << 25;", "state ^= state << 24;"),
    # small_types
    broken(
        "small_types", "half2_axpy", 33, "__hfma2(__half2half2(a), x[i], y[i])", "__hfma2(__half2half2(a), y[i], x[i])"
    ),
    broken("small_types", "half2_axpy", 33, "__hmax(__hneg(x[i]),", "__hmin(__hneg(x[i]),"),
    broken("small_types", "bf16_axpy", 33, "__float2bfloat16(a", "__float2bfloat16_rz(a"),
    broken("small_types", "bf16_axpy", 33, "__hfma2(a, x[i], y[i])", "__hfma2(a, y[i], x[i])"),
    broken("small_types", "quantize_dp4a", "33x32", "__float2int_rn(x[i]", "__float2int_rz(x[i]"),
    broken("small_types", "quantize_dp4a", "33x32", "k], x[k], sum);", "k], x[0], sum);"),
    # linear
    broken(
        "linear",
        "matmul_naive",
        "31x33x17",
        "sum += A[row * K + k] * B[k * N + col];",
        "sum = A[row * K + k] * B[k * N + col];",
    ),
    broken("linear", "matmul_tiled", "31x33x17", "sum += As[ty][k] * Bs[k][tx];", "sum += As[tx][k] * Bs[k][ty];"),
    broken(
        "linear",
        "matmul_tiled",
        "31x33x17",
        "As[ty][tx] = (row < M && t + tx < K)",
        "As[ty][tx] = (row < M && t + tx < K - 1)",
    ),
    broken("linear", "matmul_register", "70x65x40", "acc[i][j] += a[i] * b[j];", "acc[i][j] += a[j] * b[i];"),
    broken(
        "linear",
        "transpose_naive",
        "31x33",
        "out[(long long)col * rows + row + j] = in",
        "out[(long long)col * rows + row] = in",
    ),
    broken(
        "linear",
        "transpose_tiled",
        "33x64",
        "= tile[threadIdx.x][threadIdx.y + j];",
        "= tile[threadIdx.y + j][threadIdx.x];",
    ),
    broken(
        "linear",
        "transpose_padded",
        "33x64",
        "col = blockIdx.y * TILE + threadIdx.x;     //",
        "col = blockIdx.x * TILE + threadIdx.x;     //",
    ),
    broken("linear", "spmv_scalar", 33, "j < start[row + 1]; ++j) sum", "j < start[row + 1] - 1; ++j) sum"),
    broken("linear", "spmv_vector", 33, "int offset = 16; offset > 0;", "int offset = 8; offset > 0;"),
    # reductions
    broken("reductions", "reduce", 1000, "v += x[i + blockDim.x];", "v = x[i + blockDim.x];"),
    broken(
        "reductions",
        "reduce",
        1000,
        "offset > 0; offset /= 2) v += __shfl_down",
        "offset > 1; offset /= 2) v += __shfl_down",
    ),
    broken("reductions", "block_scan", 33, "if (lane >= offset) v += left;", "if (lane > offset) v += left;"),
    broken("reductions", "scan_lookback", 1000, "if (s >> 32 == 2) break;", "if (s >> 32 >= 1) break;"),
    broken("reductions", "softmax", "5x33", "sum += expf(row[c] - biggest);", "sum += expf(row[c]);"),
    broken("reductions", "layer_norm", "5x33", "float d = row[c] - mean;", "float d = row[c];"),
    broken("reductions", "tile_reduce", 3000, "offset = tile.size() / 2;", "offset = tile.size() / 4;"),
    broken("reductions", "grid_sync", 3000, "y[i] = x[i] * 2 - sum;", "y[i] = x[i] * 2 + sum;"),
    broken("reductions", "warp_aggregated_atomics", 3000, "base = active.shfl(base, 0);", ""),
    # stencils
    broken("stencils", "blur_constant", "31x5", "min(max(x + dx, 0), width - 1)", "min(max(x + dx, 1), width - 1)"),
    broken("stencils", "conv2d", "2x3x17x33", "tile[ty + j][tx + i];", "tile[ty + i][tx + j];"),
    broken("stencils", "stencil3d", "33x17x12", "(around - 6.0f * u[i])", "(around - 5.0f * u[i])"),
    broken("stencils", "nbody", 33, "tile[k].w * inverse * inverse * inverse", "tile[k].w * inverse * inverse"),
    broken("stencils", "lattice_boltzmann", "31x7", "(x - cx[q] + nx) % nx", "(x + cx[q] + nx) % nx"),
    broken(
        "stencils",
        "who_am_i_3d",
        "20x11x15",
        "(threadIdx.z * blockDim.y + threadIdx.y)",
        "(threadIdx.y * blockDim.z + threadIdx.z)",
    ),
    # sorting
    broken("sorting", "histogram", 20_000, "if (local[b]) atomicAdd", "if (local[b] > 1) atomicAdd"),
    broken("sorting", "bitonic_sort", 3000, "bool up = ((base + low) & k) == 0;", "bool up = (low & k) == 0;"),
    broken("sorting", "bitonic_sort", 3000, "bool up = (low & size) == 0;", "bool up = true;"),
    broken("sorting", "radix_pass", 5000, "& (RADIX - 1)], 1u);", "& (RADIX / 2 - 1)], 1u);"),
    broken("sorting", "radix_pass", 5000, "carry + s[from][threadIdx.x] - v;", "s[from][threadIdx.x] - v;"),
    broken("sorting", "radix_pass", 5000, "for (int w = 0; w < warp; ++w) rank", "for (int w = 1; w < warp; ++w) rank"),
    # tensor
    broken(
        "tensor", "wmma", "32x48x64", "load_matrix_sync(b, B + col * K + k, K);", "load_matrix_sync(b, B + col * K, K);"
    ),
    broken("tensor", "wmma", "32x48x64", "B[(k + i / 16) * N + col + i % 16];", "B[(k + i % 16) * N + col + i / 16];"),
    broken("tensor", "mma_ldmatrix", "48x24x64", "(&As[lane % 16][lane / 16 * 8])", "(&As[lane % 16][0])"),
    broken(
        "tensor",
        "mma_ldmatrix",
        "16x8x16",
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared",
        "ldmatrix.sync.aligned.m8n8.x2.shared",
    ),
    broken("tensor", "cp_async", 1000, "int bytes = i < end ? 16 : 0;", "int bytes = 16;"),
    broken("tensor", "cp_async", 65, "s[count - 1 - threadIdx.x];", "s[threadIdx.x];"),
    # atomics
    broken("atomics", "atomics_all", 33, "atomicMin(&t.u[2], u);", "atomicMax(&t.u[2], u);"),
    broken("atomics", "atomics_all", 500, "atomicDec(&t.u[8], 40u);", "atomicDec(&t.u[8], 41u);"),
    broken("atomics", "spin_lock", 33, "if (atomicCAS(mutex, 0, 1) == 0) {", "if (atomicCAS(mutex, 0, 1) >= 0) {"),
    broken(
        "atomics", "spin_lock", 33, "while (atomicCAS(mutex, 0, 1) != 0) { }", "while (atomicCAS(mutex, 0, 1) > 1) { }"
    ),
    broken("atomics", "block_flags", 31, "while (flag[from] == 0) { }", "flag[from];"),
    broken(
        "atomics",
        "block_flags",
        100,
        "partial[blockIdx.x] = s;",
        "partial[0] = s;",
    ),
    broken("atomics", "atomic_ref", 500, "bits.fetch_xor(i,", "bits.fetch_or(i,"),
    broken("atomics", "atomic_ref", 500, "b <= others; ++b) sum += data[b];", "b < others; ++b) sum += data[b];"),
    # integers
    broken("integers", "int32_ops", 33, "__mulhi(x, y), (int)", "__mulhi(x, x), (int)"),
    broken("integers", "int32_ops", 700, "u8[i] = (unsigned char)(b[i] - a[i]) >> 1;", "u8[i] = (b[i] - a[i]) >> 1;"),
    broken("integers", "int64_ops", 33, "__mul64hi(x, y), (long long)", "__mul64hi(x, x), (long long)"),
    broken("integers", "conversions", 33, "{rintf(v), truncf(v),", "{rintf(v), floorf(v),"),
    broken("integers", "conversions", 33, "ALL_MODES(__uint2float, (unsigned)x)", "ALL_MODES(__int2float, x)"),
    # floats
    broken("floats", "float64", 33, "{fma(x, y, z),", "{__dadd_rn(__dmul_rn(x, y), z),"),
    broken("floats", "float64", 33, "cos(x), tan(x),", "cos(x), sin(x),"),
    broken(
        "floats",
        "float32_rounding",
        33,
        "ALL_MODES(__fmul, x, y)",
        "__fmul_rn(x, y), __fmul_rn(x, y), __fmul_ru(x, y), __fmul_rd(x, y)",
    ),
    broken("floats", "nan_min_max", 400, "__float_as_uint(fmaxf(x, y))", "__float_as_uint(x > y ? x : y)"),
    broken("floats", "float32_library", 600, "expm1f(s),", "expf(s) - 1.0f,"),
    broken("floats", "fast_math", 33, "__fdividef(x, p)", "__fdividef(p, x)"),
    # memory
    broken(
        "memory", "vector_types", 33, "make_float4(f.w, f.z + 1.0f, f.y, f.x)", "make_float4(f.w, f.z + 1.0f, f.x, f.y)"
    ),
    broken("memory", "bytes_shorts_bools", 33, "(unsigned char)(255 - v)", "(unsigned char)(254 - v)"),
    broken("memory", "shared_memory", 33, "int u = 63 - t;", "int u = t;"),
    broken("memory", "shared_memory", 5000, "(float)sums[count - 1 - k];", "(float)sums[k];"),
    broken("memory", "device_variables", 33, "atomicAdd(pointer_to_counter, 2);", "atomicAdd(pointer_to_counter, 3);"),
    broken(
        "memory",
        "device_variables",
        33,
        "v += *pointer_to_counter + sbox[(i / 3) % 16]",
        "v += *pointer_to_counter + sbox[i % 16]",
    ),
    # pointers
    broken("pointers", "pointers", 33, "sum += rows[r][i];", "sum -= rows[r][i];"),
    broken("pointers", "pointers", 300, "p[0] + p[1] * 2 + p[2] * 3;", "p[0] + p[2] * 2 + p[1] * 3;"),
    broken("pointers", "pointers", 300, "p != nullptr && steps < 10;", "p != nullptr && steps < 9;"),
    broken("pointers", "local_arrays", 33, "while (k > 0 && window[k - 1] > v)", "while (k > 1 && window[k - 1] > v)"),
    broken("pointers", "local_arrays", 33, "*remainder = v % by;", "*remainder = (v + 1) % by;"),
    # control and barriers
    broken("control", "calls_and_switch", 33, "gcd(v, 360) * (double)", "gcd(v, 36) * (double)"),
    broken(
        "control", "calls_and_switch", 1000, "acc = -acc;                    // falls", "acc = -acc; break; // falls"
    ),
    broken("control", "divergent_loops", 2000, "if (b % 5 == 0) continue;", "if (b % 5 == 0) break;"),
    broken("control", "divergent_loops", 33, "for (; v != 1; ++count) v", "for (; v > 2; ++count) v"),
    broken("control", "device_printf", 33, "|%04x %c", "|%03x %c"),
    broken("barriers", "barriers", 1000, "int left = s[(t + 1) % 128];", "int left = s[(t + 2) % 128];"),
    broken("barriers", "barriers", 33, "if (warp == 3 && turn == 2) return;", "if (warp == 3 && turn == 3) return;"),
    broken("barriers", "barriers", 1000, "__syncthreads_and(v < 9990)", "__syncthreads_or(v < 9990)"),
    broken("barriers", "barriers", 33, "int v = box[63 - t % 64];", "int v = box[t % 64];"),
    broken("barriers", "barriers", 33, "= s[t - 32];", "= s[t];"),
    broken("barriers", "block_sizes", 33, "int add = t >= d ?", "int add = t > d ?"),
    broken("barriers", "block_sizes", 33, "if (i < n) atomicAdd(&total, x[i]);", "if (i < n) total = x[i];"),
    # warps
    broken("warps", "warp_shuffles", 33, "__shfl_up_sync(FULL, v, 3, 16)", "__shfl_up_sync(FULL, v, 3, 32)"),
    broken("warps", "warp_shuffles", 33, "__shfl_xor_sync(0x0000ffffu, v, 3)", "__shfl_xor_sync(0x0000ffffu, v, 2)"),
    broken("warps", "warp_votes", 33, "__match_any_sync(FULL, v),", "__match_any_sync(FULL, v / 2),"),
    broken("warps", "warp_votes", 33, "int leader = __ffs(mask) - 1", "int leader = 31 - __clz(mask)"),
    # inline PTX
    broken("ptx_cases", "ptx_warp", 1, "vote.sync.uni.pred", "vote.sync.any.pred"),
    broken("ptx_cases", "ptx_control", 5, "shl.b32 %0, %0, 4;", "shl.b32 %0, %0, 3;"),
    broken("ptx_cases", "ptx_control", 5, "@p exit;", "@!p exit;"),
    broken("ptx_cases", "ptx_memory", 1, "ld.global.s8 %0, [%1+3];", "ld.global.u8 %0, [%1+3];"),
    broken(
        "ptx_cases",
        "ptx_mma",
        1,
        "float b[2] = {Bt[g * 8 + q], Bt[g * 8 + q + 4]}",
        "float b[2] = {Bt[g * 8 + q + 4], Bt[g * 8 + q]}",
    ),
    broken("ptx_cases", "special_registers", 1, "%%ctaid.y", "%%ctaid.x"),
    broken("tensor", "mma_ldmatrix", "16x8x16", "x1.trans.shared.b16 {%0}", "x1.shared.b16 {%0}"),
    broken("pointers", "pointers", 33, "pool[order[i]].value = i * i;", "pool[order[i]].value = i;"),
    broken("integers", "conversions", 400, "{ALL_MODES(__float2int, f),", "{ALL_MODES(__float2int, (float)g * 2),"),
    broken("ptx_cases", "ptx_control", 5, "bar.red.and.pred", "bar.red.or.pred"),
    broken("ptx_cases", "ptx_memory", 1, "ld.global.ca.s32 %0, [%1+256];", "ld.global.ca.s32 %0, [%1+252];"),
    broken("ptx_cases", "ptx_memory", 1, "atom.global.inc.u32 r, [%0], 20;", "atom.global.inc.u32 r, [%0], 21;"),
    broken("ptx_cases", "ptx_memory", 1, "ld.global.s32 %0, [%1+-4];", "ld.global.s32 %0, [%1+-8];"),
    broken("ptx_cases", "ptx_mma", 1, "s32.s8.s8.s32", "s32.u8.s8.s32"),
    broken(
        "ptx_cases",
        "ptx_mma",
        1,
        '"r"(A[g * 4 + q]), "r"(A[(g + 8) * 4 + q])',
        '"r"(A[(g + 8) * 4 + q]), "r"(A[g * 4 + q])',
    ),
    Mutant(
        "tests/simt_cases/ptx_ops.py",
        '"bfe.s64 %0, %1, %2, %3;"',
        '"bfe.u64 %0, %1, %2, %3;"',
        "tests/test_simt_ptx.py::test_instruction[bfe_s64]",
    ),
]
