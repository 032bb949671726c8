#include "framework/train/heartbeat.h"

#include <fmt/format.h>

#include <exception>
#include <iterator>

namespace heddle {
namespace {

using activity::Phase;

constexpr double kLongPhase = 10;  // times the timeout
// The judge was away when it is this share of the timeout late.
constexpr double kAway = 0.5;

bool is_waiting(const activity::Snapshot& s, double timeout) {
  return !s.collective.empty() && s.collective_seconds > timeout;
}

FailedRank failed_rank(int rank, const Heartbeat& beat, std::string why) {
  FailedRank failed;
  failed.rank = rank;
  failed.host = beat.host;
  failed.step = beat.now.step;
  failed.activity = activity::describe(beat.now);
  failed.why = std::move(why);
  return failed;
}

}  // namespace

std::string heartbeat_to_text(const Heartbeat& b) {
  return json::serialize(json::array{b.count, b.host, static_cast<int>(b.now.phase), b.now.step,
                                     b.now.seconds, b.now.collective, b.now.collectives,
                                     b.now.collective_seconds});
}

std::optional<Heartbeat> heartbeat_from_text(const std::string& text) {
  try {
    const json::value value = json::parse(text);
    const json::array& a = value.as_array();
    Heartbeat b;
    b.count = a.at(0).as_int64();
    b.host = json::value_to<std::string>(a.at(1));
    b.now.phase = static_cast<Phase>(a.at(2).as_int64());
    b.now.step = a.at(3).as_int64();
    b.now.seconds = a.at(4).to_number<double>();
    b.now.collective = json::value_to<std::string>(a.at(5));
    b.now.collectives = a.at(6).as_int64();
    b.now.collective_seconds = a.at(7).to_number<double>();
    return b;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string suspicion_to_text(const Suspicion& s) {
  return json::serialize(json::array{static_cast<int>(s.kind), s.failed.rank, s.failed.host,
                                     s.failed.step, s.failed.activity, s.failed.why});
}

std::optional<Suspicion> suspicion_from_text(const std::string& text) {
  try {
    const json::value value = json::parse(text);
    const json::array& a = value.as_array();
    Suspicion s;
    s.kind = static_cast<FailureKind>(a.at(0).as_int64());
    s.failed.rank = static_cast<int>(a.at(1).as_int64());
    s.failed.host = json::value_to<std::string>(a.at(2));
    s.failed.step = a.at(3).as_int64();
    s.failed.activity = json::value_to<std::string>(a.at(4));
    s.failed.why = json::value_to<std::string>(a.at(5));
    return s;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

double phase_limit(Phase phase, double timeout) {
  switch (phase) {
    case Phase::kStep:
    case Phase::kFinish:
      return timeout;
    case Phase::kInit:
    case Phase::kCheckpoint:
    case Phase::kEvaluate:
    case Phase::kSample:
      return kLongPhase * timeout;
  }
  return timeout;
}

bool is_stuck(const activity::Snapshot& now, double timeout) {
  return now.collective.empty() && now.seconds > phase_limit(now.phase, timeout);
}

HeartbeatJudge::HeartbeatJudge(int world_size, double timeout, double now)
    : timeout_(timeout), judged_(now), ranks_(world_size) {
  for (Rank& rank : ranks_) rank.heard = now;
}

void HeartbeatJudge::hear(int rank, const Heartbeat& beat, double now) {
  Rank& r = ranks_.at(rank);
  if (beat.count != r.beat.count) r.heard = now;
  r.beat = beat;
}

void HeartbeatJudge::leave(int rank) {
  ranks_.at(rank).left = true;
}

std::optional<Suspicion> HeartbeatJudge::judge(double now) {
  const bool away = now - judged_ > kAway * timeout_;
  judged_ = now;
  if (away) {
    for (Rank& rank : ranks_) rank.heard = now;
  }
  if (auto silent = silent_rank(now)) return silent;
  return all_waiting();
}

std::optional<Suspicion> HeartbeatJudge::silent_rank(double now) const {
  const Rank* worst = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.left || now - rank.heard <= timeout_) continue;
    if (worst == nullptr || rank.heard < worst->heard) worst = &rank;
  }
  if (worst == nullptr) return std::nullopt;
  const auto r = static_cast<int>(worst - ranks_.data());
  return Suspicion{
      failed_rank(r, worst->beat,
                  fmt::format("no sign of life for {:.1f} s (dist.timeout_s {:g}): frozen, or cut "
                              "off from the network",
                              now - worst->heard, timeout_)),
      FailureKind::kSilent};
}

std::optional<Suspicion> HeartbeatJudge::all_waiting() const {
  const Rank* behind = nullptr;
  bool level = true;
  for (const Rank& rank : ranks_) {
    if (rank.left) return std::nullopt;
    if (!is_waiting(rank.beat.now, timeout_)) return std::nullopt;
    if (behind != nullptr && rank.beat.now.collectives != behind->beat.now.collectives) {
      level = false;
    }
    if (behind == nullptr || rank.beat.now.collectives < behind->beat.now.collectives) {
      behind = &rank;
    }
  }
  if (behind == nullptr || ranks_.size() == 1) return std::nullopt;
  const auto r = static_cast<int>(behind - ranks_.data());
  if (level) {
    Suspicion s{failed_rank(-1, behind->beat, ""), FailureKind::kStuck};
    s.failed.why = fmt::format(
        "all ranks have waited in {} #{} of step {} for {:.1f} s: messages between them are lost",
        behind->beat.now.collective, behind->beat.now.collectives, behind->beat.now.step,
        behind->beat.now.collective_seconds);
    return s;
  }
  return Suspicion{
      failed_rank(r, behind->beat, "it waits in an earlier collective than the others"),
      FailureKind::kStuck};
}

}  // namespace heddle
