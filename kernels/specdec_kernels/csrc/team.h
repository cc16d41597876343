// A team of threads that work on one op together, and their barrier.
//
// The threads are our own and not OpenMP's: its threads spin for milliseconds whenever they wait (libgomp: 300,000
// pauses), and so take the core that another process, or another thread of the team, needs. Ours spin for microseconds
// and then sleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>

// A number that threads wait for.
class Flag {
  public:
    int get() const { return value.load(std::memory_order_acquire); }
    void set(int to);             // wakes those who sleep
    void wait_while(int is) const;  // returns when the number is another

  private:
    std::atomic<int> value{0};
    mutable std::atomic<int> sleepers{0};
};

class Barrier {
  public:
    void wait(int count) {
        const int now = round.get();
        if (arrived.fetch_add(1) + 1 < count) return round.wait_while(now);
        arrived.store(0);
        round.set(now + 1);
    }

  private:
    std::atomic<int> arrived{0};
    Flag round;
};

struct Team {
    int index, count;
    Barrier* barrier;

    void wait() const {
        if (count > 1) barrier->wait(count);
    }

    // This thread's part of `items`.
    std::pair<long, long> share(long items) const { return {items * index / count, items * (index + 1) / count}; }
};

void run_team(int threads, void (*call)(const void* work, const Team& team), const void* work);

// Calls work(team) on every thread of a team of up to `threads`; on the calling thread alone if it is not worth a team.
template <class F>
void together(int threads, bool worth, const F& work) {
    if (threads < 2 || !worth) return work(Team{0, 1, nullptr});
    run_team(threads, [](const void* f, const Team& team) { (*(const F*)f)(team); }, &work);
}

// Calls work(item) for each item, which threads take one by one.
template <class F>
void in_turns(int threads, bool worth, long items, const F& work) {
    std::atomic<long> next{0};
    together(threads, worth, [&](const Team&) {
        for (long item; (item = next.fetch_add(1)) < items;) work(item);
    });
}
