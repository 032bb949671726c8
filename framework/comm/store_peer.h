// One connection of a StoreServer. Used by the store's thread only.
#pragma once

#include <boost/asio.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "framework/comm/store_wire.h"

namespace heddle {

class StorePeer : public std::enable_shared_from_this<StorePeer> {
 public:
  // unread_bytes: a peer that lets more pile up is closed.
  StorePeer(boost::asio::ip::tcp::socket s, int64_t unread_bytes)
      : socket(std::move(s)), hello_timer(socket.get_executor()), unread_bytes_(unread_bytes) {}

  // Sends after what was sent before.
  void send(std::string bytes);
  // A reply that begins with room for its length.
  void send(store_wire::Writer reply) {
    reply.patch_length(0);
    send(reply.take());
  }
  void close();
  bool closed() const { return closed_; }
  // Closes after what is still to be written; at once when that is nothing.
  void close_when_written();

  boost::asio::ip::tcp::socket socket;
  boost::asio::steady_timer hello_timer;
  int rank = -1;  // -1: has not said a valid hello
  uint64_t instance = 0;
  bool left = false;    // has said goodbye
  int64_t pending = 0;  // requests that wait for keys

 private:
  void write();

  const int64_t unread_bytes_;
  bool closed_ = false, writing_ = false, closing_ = false;
  std::deque<std::string> outbox_;
  int64_t outbox_bytes_ = 0;
};

using StorePeerPtr = std::shared_ptr<StorePeer>;

}  // namespace heddle
