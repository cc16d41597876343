"""The C++ reads and writes nothing outside of its arguments, its scratch memory and its arrays, under AddressSanitizer.

A program includes every source and calls every op with buffers that are exactly as large as the op may use. It is
compiled without optimisation, which takes seconds, and only looks at addresses: other tests look at results.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from specdec_kernels import build, cpu

FLAGS = (
    *("-std=c++17", "-O0", "-w", "-pthread", "-D_GLIBCXX_SANITIZE_VECTOR"),
    *("-fsanitize=address,bounds", "-fno-sanitize-recover=all"),
)

PROGRAM = r"""
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "team.cpp"

#include "attention.h"
#include "parts.h"
#include "slots.h"
namespace in_attention {
#include "attention.cpp"
}
namespace in_cells {
#include "cells.cpp"
}
namespace in_decoder {
#include "decoder.cpp"
}
namespace in_layer {
#include "layer.cpp"
}
namespace in_linear {
#include "linear.cpp"
}
namespace in_process {
#include "process.cpp"
}
namespace in_verify {
#include "verify.cpp"
}
namespace in_window {
#include "window.cpp"
}

uint64_t state = 1;

uint64_t word() { return state = mix(state + GOLDEN); }

template <class T>
std::vector<T> numbers(long count) {
    std::vector<T> out(count);
    for (T& one : out) {
        if constexpr (std::is_integral_v<T>) one = T(word());
        else put(&one, float(word() >> 40) * 0x1p-23f - 1.0f);
    }
    return out;
}

std::vector<int64_t> below(long count, uint64_t end) {
    std::vector<int64_t> out(count);
    for (int64_t& one : out) one = word() % end;
    return out;
}

struct Made {
    std::vector<char> weight;
    std::vector<float> scale, bias;
    Matrix matrix;
    Made(long kind, long inputs, long outputs) : bias(numbers<float>(outputs)) {
        const long places = (outputs + 15) / 16 * 16;
        const long even = (inputs + 1) / 2 * 2, halves[] = {8 * inputs, 4 * even, 2 * inputs, inputs};
        weight = std::vector<char>(places * halves[kind] / 2);
        if (kind == INT8) scale = numbers<float>(outputs);
        if (kind == INT4) scale = numbers<float>(places * inputs / 32);  // twice as many halves
        matrix = {weight.data(), kind >= INT8 ? scale.data() : nullptr, bias.data(), kind, inputs, outputs};
    }
};

template <class T>
void attend(long batch, long heads, long heads_kv, long width, long length, long size, int threads) {
    const auto query = numbers<T>(batch * heads * width * size), keys = numbers<T>(batch * heads_kv * length * size);
    const auto values = numbers<T>(keys.size()), mask = numbers<T>(batch * width * length);
    const auto sinks = numbers<T>(heads);
    std::vector<T> out(query.size());
    in_attention::specdec_tree_attention(
        sizeof(T) == 2, query.data(), keys.data(), values.data(), mask.data(), sinks.data(), out.data(), batch,
        heads, heads_kv, width, length, size, heads * width * size, width * size, size, heads_kv * length * size,
        length * size, size, heads_kv * length * size, length * size, size, width * length, length, 0.3f,
        size % 2 ? 2.0f : 0.0f, threads);
}

template <class T>
void multiplied(long kind, long rows, long inputs, long outputs, int threads) {
    const Made made(kind, inputs, outputs);
    const auto x = numbers<T>(rows * inputs);
    std::vector<T> y(rows * outputs);
    const Matrix& m = made.matrix;
    in_linear::specdec_linear(
        kind, m.weight, m.scale, m.bias, sizeof(T) == 2, sizeof(T) == 2, x.data(), y.data(), rows, inputs, outputs,
        threads);
    for (const std::vector<int64_t> counts : {std::vector<int64_t>{rows}, {1}, {(rows + 1) / 2}, {rows + 9}, {-1}})
        in_linear::specdec_linear_of_slots(
            kind, m.weight, m.scale, m.bias, sizeof(T) == 2, sizeof(T) == 2, x.data(), y.data(), counts.data(), 1, rows,
            inputs, outputs, threads);
}

template <class T>
void layers(long kind, long batch, long width, long hidden, long inner, long size, int threads) {
    const long heads = 4, heads_kv = 2, cells = 40, rows = batch * width;
    const Made qkv(kind, hidden, (heads + 2 * heads_kv) * size), out(kind, heads * size, hidden);
    const Made gate_up(kind, hidden, 2 * inner), down(kind, inner, hidden);
    const auto before = numbers<T>(hidden), after = numbers<T>(hidden), x = numbers<T>(rows * hidden);
    const auto cos = numbers<T>(rows * size), sin = numbers<T>(rows * size), mask = numbers<T>(rows * cells);
    auto keys = numbers<T>(batch * heads_kv * cells * size), values = keys, y = x;
    std::vector<int64_t> to(rows);
    for (long row = 0; row < rows; row++) to[row] = cells - 1 - row % width;
    const in_layer::Layer layer{qkv.matrix, out.matrix, gate_up.matrix, down.matrix, before.data(), after.data(),
                                heads, heads_kv, size, 1e-5f, 1e-5f, 1.0f, 0.3f};
    const in_layer::Layer* const both[] = {&layer, &layer};
    const in_layer::Cells one{keys.data(), values.data(), to.data(), mask.data(), cells,
                              {heads_kv * cells * size, cells * size, size},
                              {heads_kv * cells * size, cells * size, size}, {width * cells, cells}};
    const in_layer::Cells at[] = {one, one};
    const in_layer::Turn turn{cos.data(), sin.data(), width * size};
    std::vector<int64_t> counts(batch, width);
    counts[0] = (width + 1) / 2;
    for (const int64_t* some : {(const int64_t*)counts.data(), (const int64_t*)nullptr})
        in_layer::specdec_decoder_layers(
            both, 2, sizeof(T) == 2, x.data(), y.data(), &turn, at, some, batch, width, threads);
}

template <class T>
void parts(long rows, long size, int threads) {
    const auto x = numbers<T>(rows * size), weight = numbers<T>(size), up = numbers<T>(rows * size);
    std::vector<T> y(rows * size), z(rows * size);
    in_decoder::specdec_rms_norm(sizeof(T) == 2, x.data(), weight.data(), y.data(), rows, size, 1e-5f, 0.0f, threads);
    in_decoder::specdec_silu_mul(sizeof(T) == 2, x.data(), up.data(), y.data(), rows, size, size, size, threads);
    if (size % 2 == 0)
        in_decoder::specdec_rotary(
            sizeof(T) == 2, x.data(), up.data(), x.data(), up.data(), y.data(), z.data(), 1, 1, 1, rows, size,
            rows * size, rows * size, size, rows * size, rows * size, size, 0);
}

void moved(long item) {
    const long batch = 2, heads = 3, cells = 5, size = 7, width = 4, bytes = batch * heads * size * item;
    std::vector<char> keys(bytes * cells), values(bytes * cells), more(bytes * width), others(bytes * width);
    const std::vector<int64_t> from{4, 1, 2, 0, 3, 2, 4, 1}, to{0, 1, 4, 3, 4, 2, 1, 0};
    in_cells::specdec_kv_append(
        keys.data(), values.data(), more.data(), others.data(), to.data(), item, batch, heads, width, size,
        heads * cells * size, cells * size, size, heads * cells * size, cells * size, size, heads * width * size,
        width * size, size, heads * width * size, width * size, size);
    in_cells::specdec_kv_compact(
        keys.data(), values.data(), from.data(), to.data(), batch, heads, width, size, item, heads * cells * size,
        cells * size, size, heads * cells * size, cells * size, size);
}

template <class T>
void planned(long batch, long width, long span, long capacity, long look) {
    std::vector<int64_t> parents(batch * width), committed(batch), depths(parents), positions(parents), cells(parents);
    for (long i = 0; i < batch * width; i++) parents[i] = i % width ? word() % (i % width) : -1;
    for (long b = 0; b < batch; b++) committed[b] = b * (span ? 2 * capacity : look - width);
    std::vector<T> mask(batch * width * look);
    in_window::specdec_kv_plan(
        parents.data(), committed.data(), depths.data(), positions.data(), cells.data(), mask.data(), sizeof(T), 1,
        batch, width, span, capacity, look, 9);
    for (long steps : {1L, width}) {
        const long most = 3 * width;
        const auto proposed = below(batch * width, 9), next = below(batch, 9);
        std::vector<int64_t> accepted(batch), path(batch * steps, -1), length(batch, most - steps);
        std::vector<int64_t> tokens(batch * most), packed(batch * (steps + 4));
        for (long b = 0; b < batch; b++) {
            accepted[b] = b % steps;
            for (long i = 0; i <= accepted[b]; i++) path[b * steps + i] = i ? width - 1 : 0;
        }
        in_window::specdec_emit(
            proposed.data(), depths.data(), cells.data(), path.data(), accepted.data(), next.data(), length.data(),
            tokens.data(), packed.data(), batch, width, steps, most, 1);
    }
}

void processed(long rows, long slots, long size, bool all, int threads) {
    std::vector<float> heat(rows), top_p(rows), min_p(rows);
    std::vector<int64_t> top_k(rows);
    for (long row = 0; row < rows; row++) {
        heat[row] = row % 4 == 3 ? 0.0f : 0.7f;
        top_p[row] = row % 2 ? 0.6f : 1.0f;
        min_p[row] = row % 3 ? 0.0f : 0.1f;
        top_k[row] = row % 3 == 1 ? (size + 1) / 2 : 0;
    }
    const auto logits = numbers<float>(rows * slots * size), bias = numbers<float>(rows * size);
    std::vector<uint8_t> seen(rows * size);
    std::vector<int32_t> emitted(rows * size);
    for (long i = 0; i < rows * size; i += 3) seen[i] = 1, emitted[i] = i % 2;
    const std::vector<float> one(rows, 1.25f);
    const long depth = 3, bans = 2;
    auto paths = below(rows * slots * depth, size), banned = below(rows * slots * bans, size);
    paths[0] = banned[1] = paths[paths.size() - 1] = -1;
    std::vector<float> out(logits.size());
    in_process::Processors with{heat.data(), top_p.data(), min_p.data(), top_k.data()};
    if (all)
        with = {heat.data(), top_p.data(), min_p.data(), top_k.data(), bias.data(), seen.data(), emitted.data(),
                one.data(), one.data(), one.data(), paths.data(), banned.data(), depth, bans, size, size, size};
    in_process::specdec_process(&with, logits.data(), out.data(), rows, slots, size, threads);
}

void drawn(long rows, long slots, long size, int threads) {
    const auto logits = numbers<float>(rows * slots * size);
    const auto keys = numbers<int64_t>(rows * slots);
    std::vector<int64_t> chosen(rows * slots), path(rows * slots), accepted(rows), next(rows);
    std::vector<int64_t> width(rows), parents(rows * slots);
    for (long row = 0; row < rows; row++) width[row] = slots - row % slots;
    for (const int64_t* key : {keys.data(), (const int64_t*)nullptr})
        for (const int64_t* counts : {(const int64_t*)width.data(), (const int64_t*)nullptr})
            in_verify::specdec_sample(
                logits.data(), key, chosen.data(), counts, rows, slots, size, size, threads);
    const auto tokens = below(rows * slots, size);
    for (long i = 0; i < rows * slots; i++) parents[i] = i % slots - 1;
    in_verify::specdec_verify_prefix(
        tokens.data(), parents.data(), width.data(), tokens.data(), path.data(), accepted.data(), next.data(), rows,
        slots);
    std::vector<float> p(rows * slots * size, 1.0f / size), q(rows * (slots - 1) * size, 2.0f / size);
    for (const float* draft : {(const float*)q.data(), (const float*)nullptr})
        in_verify::specdec_rejection_sample(
            p.data(), slots > 1 ? draft : nullptr, tokens.data(), width.data(), keys.data(), keys.data(), keys.data(),
            path.data(), accepted.data(), next.data(), rows, slots, size, threads);
}

// On a thread of its own: what threads keep from call to call is as large as this call asks for.
template <class F>
void alone(const F& work) { std::thread(work).join(); }

int main(int count, char**) {
    if (count > 1) return numbers<char>(count).data()[count];
    for (int threads : {1, 3}) {
        for (long size : {1, 15, 16, 17, 31, 33, 64, 1025}) {
            parts<float>(3, size, threads), parts<bf16>(3, size, threads);
            for (bool all : {false, true}) processed(6, 2, size, all, threads);
            drawn(3, 3, size, threads);
        }
        parts<float>(9, 8192, threads);
        drawn(1, 1, 9000, threads), drawn(4, 1, 4096, threads);
        for (long item : {1, 2, 4}) moved(item);
        for (long width : {1, 2, 7}) {
            planned<uint16_t>(2, width, 0, 20, 17), planned<uint32_t>(1, width, 3, 9, 9);
            planned<uint64_t>(3, width, 11, 20, 20);
        }
        for (long kind : {FLOAT32, BFLOAT16, INT8, INT4}) {
            for (long rows = 1; rows <= 14; rows++)
                for (long outputs : {1, 15, 16, 33, 64}) {
                    alone([=] { multiplied<float>(kind, rows, kind == INT4 ? 64 : 67, outputs, threads); });
                    alone([=] { multiplied<bf16>(kind, rows, kind == INT4 ? 32 : 64, outputs, threads); });
                }
            alone([=] { multiplied<float>(kind, 75, kind == INT4 ? 320 : 259, 33, threads); });
            alone([=] { multiplied<float>(kind, 26, 256, 49, threads); });
            alone([=] { multiplied<bf16>(kind, 193, 32, 17, threads); });
            alone([=] { multiplied<float>(kind, 3, kind == INT4 ? 256 : 255, 190, threads); });
            const bool whole = kind == INT4;  // groups of 32 inputs
            for (long rows : {1, 5}) {
                alone([=] { layers<float>(kind, 2, rows, 32, 32, 16, threads); });
                alone([=] { layers<float>(kind, 1, rows, 96, 64, 8, threads); });
                if (whole) alone([=] { layers<bf16>(kind, 1, rows, 64, 288, 8, threads); });
                else alone([=] { layers<bf16>(kind, 1, rows, 33, 270, 10, threads); });
            }
        }
        for (long size : {1, 10, 16, 33, 64, 80})
            for (long length : {1, 15, 16, 33, 48, 300}) {
                alone([=] { attend<float>(1, 3, 3, 2, length, size, threads); });
                alone([=] { attend<bf16>(2, 4, 2, 3, length, size, threads); });
            }
        alone([=] { attend<float>(1, 2, 1, 1, 256, 256, threads); });
        alone([=] { attend<float>(1, 8, 1, 4, 48, 272, threads); });
        alone([=] { attend<float>(1, 1, 1, 1, 600, 64, threads); });
    }
    std::puts("done");
}
"""


def _addresses_program(level: str, folder: Path) -> str:
    """The program for a level, compiled; skips where there is no compiler with a sanitizer."""
    compiler = cpu.cpu_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    asked = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if not Path(asked.stdout.strip()).is_absolute():
        pytest.skip(f"{compiler} has no AddressSanitizer")
    source, made = folder / "program.cpp", folder / "program"
    source.write_text(PROGRAM)
    sets = [f"-m{name}" for name in cpu.LEVELS[level].values()]
    command = [compiler, *FLAGS, *sets, f"-I{build.SOURCES}", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return str(made)


@pytest.mark.slow
@pytest.mark.parametrize("level", dict.fromkeys(("plain", cpu.levels()[0])))
def test_every_op_stays_inside_of_its_arguments_its_scratch_and_its_arrays(level: str, tmp_path: Path) -> None:
    program = _addresses_program(level, tmp_path)
    # Threads that live as long as the process are no leak.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": ""}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr[:3000]) == (0, "done\n", "")
    seen = subprocess.run([program, "look"], env=environment, capture_output=True, text=True, check=False)
    assert seen.returncode, "a read past the end of a buffer was not found"
    assert "heap-buffer-overflow" in seen.stderr
