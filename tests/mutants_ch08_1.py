"""Faults in the kernels and the allocator of sections 8.1.1 and 8.1.2, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 8.1.1
    *faults(
        "ch08_memory/s8_1_1_memory_hierarchy.py",
        "tests/test_ch08_1.py",
        # link_ring
        (
            "if (i >= cells) return;\n    const long long here",
            "if (i > cells) return;\n    const long long here",
            "811_a_ring_links_every_cell_and_nothing_else",
        ),
        ("next = order[i + 1 < cells ? i + 1 : 0];", "next = order[i + 1 < cells ? i + 1 : i];", "811_chases"),
        ("= ring + next * LINE;", "= ring + next * LINE + 8;", "811_a_ring_links_every_cell_and_nothing_else"),
        # chase
        ("follow(warm);", "follow(warm + 1);", "811_chases"),
        ("hop < steps; ++hop", "hop <= steps; ++hop", "811_chases"),
        ("*last = (at - ring) / LINE;", "*last = (at - ring) / 64;", "811_chases"),
        ("PATH == CA ? __ldca(address) : __ldcg(address)", "PATH == CA ? __ldca(address) : 0", "811_chases"),
        # chase_shared
        ("order[i + 1 < cells ? i + 1 : 0] * LINE;", "order[i] * LINE;", "811_chases"),
        ("for (int i = 0; i < cells; ++i)", "for (int i = 0; i < cells - 1; ++i)", "811_chases"),
        ("int hop = 0; hop < hops; ++hop) at", "int hop = 1; hop < hops; ++hop) at", "811_chases"),
        # read_set
        ("if (at >= count) at -= count;", "if (at > count) at -= count;", "811_reads"),
        ("step %= count;", "", "811_reads"),
        ("unsigned at = thread % count,", "unsigned at = threadIdx.x % count,", "811_reads"),
        ("sum += v.x + v.y + v.z + v.w;", "sum += v.x + v.y + v.z;", "811_reads"),
        ("__syncthreads();  // all of the set", "// all of the set", "811_a_set_is_not_read_before_it_is_whole"),
        ("i < count; i += blockDim.x) reint", "i < count; i += blockDim.x + 1) reint", "811_reads"),
        ("i < loads; ++i", "i < loads - 1; ++i", "811_reads"),
        # the host
        ('(grid if path == "cg" else 1)', '(grid if path != "cg" else 1)', "811_reads"),
        ("if values[nbytes] > limit", "if values[nbytes] >= limit", "811_where_a_curve_steps"),
        ("return before[-1], beyond[0]", "return before[0], beyond[0]", "811_where_a_curve_steps"),
        ("if nbytes <= ends[0]]", "]", "811_levels"),
        ("8 * facts[", "12 * facts[", "811_levels"),
    ),
    # --- 8.1.2
    *faults(
        "ch08_memory/s8_1_2_allocation_and_bandwidth.py",
        "tests/test_ch08_1.py",
        # copy
        ("if (i < n) y[i] = x[i];", "if (i <= n) y[i] = x[i];", "812_a_copy_writes_its_own_elements_only"),
        # copy_shifted
        ("y[i] = x[i + shift];\n}", "y[i] = x[i + 1 - shift];\n}", "812_every_pattern"),
        ("if (i < n) y[i] = x[i + shift]", "if (i <= n) y[i] = x[i]", "812_every_pattern"),
        # copy_strided
        ("if (row < n) y[blockIdx.y * n + row]", "if (row <= n) y[blockIdx.y * n + row]", "812_every_pattern"),
        ("x[row * k + blockIdx.y]", "x[row + n * blockIdx.y]", "812_every_pattern"),
        # copy_float4
        (
            "| (unsigned long long)y) % 16 == 0",
            "| (unsigned long long)y) % 4 == 0",
            "812_vectors_in_memory_that_16_does_not_divide",
        ),
        ("if (q < quads) reint", "if (q <= quads) reint", "812_a_copy_writes_its_own_elements_only"),
        ("i = 4 * quads + q; i < n", "i = 4 * quads + q + 1; i < n", "812_every_pattern"),
        ("i < n; i += threads)", "i < n; i += 4 * threads)", "812_vectors_in_memory_that_16_does_not_divide"),
        ('"move_soa_float4", 0, 32, 4, 16', '"move_soa_float4", 0, 32, 8, 16', "812_every_pattern"),
        # move_aos
        ("p[i].z += dt * p[i].vz;", "p[i].z += dt * p[i].vy;", "812_every_pattern"),
        # moved, move_aos_float4
        ("place.w + dt * speed.w}", "place.w}", "812_every_pattern"),
        ("speed.w = 0.0f;", "", "812_every_pattern"),
        ("float4 speed = p[2 * i + 1];", "float4 speed = p[2 * i];", "812_every_pattern"),
        # move_soa
        ("dt * p[(4 + axis) * n + i]", "dt * p[(3 + axis) * n + i]", "812_every_pattern"),
        ("axis < 3; ++axis) p[axis * n + i]", "axis < 2; ++axis) p[axis * n + i]", "812_every_pattern"),
        # move_soa_float4
        ("if (q >= quads) return;", "if (q >= quads - 1) return;", "812_every_pattern"),
        ("p[(4 + axis) * quads + q]", "p[(5 - axis) * quads + q]", "812_every_pattern"),
        # the allocator
        ("size = -(-int(nbytes) // ALIGNMENT) * ALIGNMENT", "size = nbytes", "812_no_overlap_nothing_lost_all_merged"),
        ("bisect.bisect_left(free, (size, 0))", "-1", "812_best_fit_and_splitting"),
        (
            "            if block.size > size:\n",
            "            if block.size > 2 * size:\n",
            "812_no_overlap_nothing_lost_all_merged",
        ),
        ("size=block.size - size))", "size=block.size))", "812_no_overlap_nothing_lost_all_merged"),
        ("other.segment is block.segment", "other.pool == block.pool", "812_segments_that_touch_do_not_merge"),
        ("size=block.size + other.size)", "size=other.size)", "812_no_overlap_nothing_lost_all_merged"),
        ("in (self.ends.get(address), self.blocks", "in (None, self.blocks", "812_no_overlap_nothing_lost_all_merged"),
        ("self.blocks.get(address + block.size))", "None)", "812_no_overlap_nothing_lost_all_merged"),
        ("pool = int(stream.handle), size <= SMALL", "pool = 0, size <= SMALL", "812_what_a_pool_is_for"),
        ("pool = int(stream.handle), size <= SMALL", "pool = int(stream.handle), True", "812_what_a_pool_is_for"),
        (
            "            self.release()  # and once more",
            "            pass  # and once more",
            "812_out_of_memory_gives_back_what_is_only_kept",
        ),
        (" or self.blocks[address].free:", ":", "812_bad_frees_and_sizes"),
        (
            "if block.free and block.size == block.segment.size:",
            "if block.free:",
            "812_no_overlap_nothing_lost_all_merged",
        ),
        (
            "        with self.lock:\n            if address not in",
            "        if True:\n            if address not in",
            "812_an_allocator_holds_its_lock",
        ),
        ("for address in blocks[:4]:", "for address in blocks[:3]:", "812_the_picture_of_fragmentation"),
        (
            "-(-(block.address + block.size - first) // unit)",
            "(block.address + block.size - first) // unit",
            "812_the_picture_of_fragmentation",
        ),
        ("sizes[block.free].append(block.size)", "sizes[True].append(block.size)", "812_the_picture_of_fragmentation"),
        (
            "    free(held[0])\n    third = empty()\n",
            "    third = empty()\n    free(held[0])\n",
            "812_a_freed_block_is_used_again_at_once",
        ),
    ),
]
