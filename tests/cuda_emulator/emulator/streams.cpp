#include "streams.h"

#include <utility>

namespace heddle::emulator {

Streams& streams() {
  static auto& all = *new Streams;
  return all;
}

CUstream_st* Streams::make() {
  all_.push_back(new CUstream_st);
  return all_.back();
}

// Has anything come to an end?
bool Streams::advance(CUstream_st& stream) {
  bool moved = false;
  while (!stream.tasks.empty() && !stream.running) {
    stream.running = true;
    const bool done = stream.tasks.front()();
    stream.running = false;
    if (!done) break;
    stream.tasks.pop_front();
    moved = true;
  }
  return moved;
}

void Streams::advance() {
  for (bool moved = true; moved;) {
    moved = false;
    for (CUstream_st* stream : all_) moved = advance(*stream) || moved;
  }
}

bool Streams::idle(CUstream_st* stream) {
  if (of(stream).tasks.empty()) return true;
  advance();
  return of(stream).tasks.empty();
}

bool Streams::idle() {
  advance();
  for (const CUstream_st* stream : all_) {
    if (!stream->tasks.empty()) return false;
  }
  return true;
}

void Streams::push(CUstream_st* stream, HeddleStreamTask task) {
  of(stream).tasks.push_back(std::move(task));
  advance();
}

int Streams::take_error() {
  return std::exchange(error_, 0);
}

}  // namespace heddle::emulator
