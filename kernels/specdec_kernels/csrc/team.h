// A team of OpenMP's threads inside one parallel region, with a barrier of its own.
//
// OpenMP's barrier spins for milliseconds before it sleeps (libgomp: 300,000 pauses). If another process has the core of
// a thread that is late, the others hold their cores meanwhile for nothing, and both processes stand still. Our barrier
// spins for some microseconds, which is longer than the parts of a layer differ, and then sleeps in the kernel.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <utility>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <thread>
#endif

constexpr int SPINS = 1000;  // some 40 us on the machines of docs/kernels.md

class Barrier {
  public:
    void wait(int count) {
        const int now = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1) + 1 == count) {
            arrived.store(0);
            round.store(now + 1);
            if (sleepers.load()) wake();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (round.load(std::memory_order_acquire) != now) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        sleepers.fetch_add(1);
        while (round.load() == now) sleep(now);
        sleepers.fetch_sub(1);
    }

  private:
    std::atomic<int> arrived{0}, round{0}, sleepers{0};

#if defined(__linux__)
    void sleep(int now) { syscall(SYS_futex, (int*)&round, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0); }
    void wake() { syscall(SYS_futex, (int*)&round, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }
#else
    void sleep(int) { std::this_thread::yield(); }
    void wake() {}
#endif
};

struct Team {
    int index, count;
    Barrier* barrier;

    void wait() const {
        if (count > 1) barrier->wait(count);
    }

    // This thread's part of `items`, in whole multiples of `step` but for the last.
    std::pair<long, long> share(long items, long step = 1) const {
        const long steps = (items + step - 1) / step;
        return {std::min(items, steps * index / count * step), std::min(items, steps * (index + 1) / count * step)};
    }
};

// Calls f(team) on every thread of a team; on the calling thread alone if the work is not worth a team.
template <class F>
void together(int threads, bool worth, const F& f) {
    Barrier barrier;
#pragma omp parallel num_threads(threads) if (worth && threads > 1)
    {
        const Team team{omp_get_thread_num(), omp_get_num_threads(), &barrier};
        f(team);
        team.wait();  // so that nobody spins in OpenMP's own barrier at the end
    }
}
