// The threads of team.h.

#include "team.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Pauses of a wait before it sleeps: some 0.3 ms, more than Python takes between two ops, unless another process wants the
// core. A thread that lost its core while it waited sleeps at once, and after some 20 us in its next waits: with 10,000
// pauses two equal runs on two cores had 0.25 of their speed alone, with 1,000 0.49; a yield of the core in place of sleep
// left 0.05 beside busy loops.
constexpr int ALONE = 10000, BESIDE_OTHERS = 1000, BETWEEN_LOOKS = 50, WARY_WAITS = 3000;
constexpr auto LOST = std::chrono::microseconds(100);

thread_local int wary = 0;  // waits for which others are expected

class Pool {
  public:
    static Pool& get() {
        static Pool* pool = made();
        return current ? *current : *pool;
    }

    void run(int threads, void (*call)(const void*, const Team&), const void* work) {
        const std::lock_guard<std::mutex> one_at_a_time(busy);
        Barrier barrier;
        while (int(helpers.size()) < threads - 1) {
            auto* helper = new Helper;  // lives as long as the process
            helpers.push_back(helper);
            std::thread([helper] { helper->work(); }).detach();
        }
        const Job job{call, work, threads, &barrier};
        for (int i = 0; i < threads - 1; i++) helpers[i]->give(&job, i + 1);
        call(work, Team{0, threads, &barrier});
        for (int i = 0; i < threads - 1; i++) helpers[i]->finished();
    }

  private:
    struct Job {
        void (*call)(const void*, const Team&);
        const void* work;
        int count;
        Barrier* barrier;
    };

    struct Helper {
        Flag given, done;  // numbers of jobs
        const Job* job = nullptr;
        int index = 0;

        void give(const Job* next, int number) {
            job = next;
            index = number;
            given.set(given.get() + 1);
        }

        void finished() {
            while (done.get() != given.get()) done.wait_while(given.get() - 1);
        }

        void work() {
            for (int now = 0;; now++) {
                given.wait_while(now);
                job->call(job->work, Team{index, job->count, job->barrier});
                done.set(now + 1);
            }
        }
    };

    static Pool* made() {
#if defined(__unix__) || defined(__APPLE__)
        // The threads do not exist in a forked process; it starts its own.
        pthread_atfork(nullptr, nullptr, [] { current = new Pool; });
#endif
        return current = new Pool;
    }

    static inline Pool* current = nullptr;
    std::mutex busy;
    std::vector<Helper*> helpers;
};

}  // namespace

void run_team(int threads, void (*call)(const void*, const Team&), const void* work) {
    Pool::get().run(threads, call, work);
}

void Flag::set(int to) {
    value.store(to);
#if defined(__linux__)
    if (sleepers.load()) syscall(SYS_futex, (int*)&value, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
#endif
}

void Flag::wait_while(int is) const {
    const int most = wary > 0 ? BESIDE_OTHERS : ALONE;
    if (wary > 0) wary--;
    auto before = std::chrono::steady_clock::now();
    for (int i = 0; i < most; i++) {
        if (get() != is) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (i % BETWEEN_LOOKS) continue;
        const auto now = std::chrono::steady_clock::now();
        if (now - before > LOST) {
            wary = WARY_WAITS;
            break;
        }
        before = now;
    }
#if defined(__linux__)
    sleepers.fetch_add(1);
    while (value.load() == is) syscall(SYS_futex, (int*)&value, FUTEX_WAIT_PRIVATE, is, nullptr, nullptr, 0);
    sleepers.fetch_sub(1);
#else
    while (get() == is) std::this_thread::yield();
#endif
}
