#include "framework/comm/store_peer.h"

namespace heddle {

namespace asio = boost::asio;
using boost::system::error_code;

void StorePeer::send(std::string bytes) {
  if (closed_) return;
  if (outbox_bytes_ > unread_bytes_) return close();
  outbox_bytes_ += static_cast<int64_t>(bytes.size());
  outbox_.push_back(std::move(bytes));
  if (!writing_) write();
}

void StorePeer::write() {
  writing_ = true;
  asio::async_write(socket, asio::buffer(outbox_.front()),
                    [self = shared_from_this()](error_code error, size_t) {
                      self->outbox_bytes_ -= static_cast<int64_t>(self->outbox_.front().size());
                      self->outbox_.pop_front();
                      self->writing_ = false;
                      if (error) return self->close();
                      if (!self->outbox_.empty()) return self->write();
                      if (self->closing_) self->close();
                    });
}

void StorePeer::close_when_written() {
  closing_ = true;
  if (!writing_) close();
}

void StorePeer::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  hello_timer.cancel();
  socket.close(ignored);
}

}  // namespace heddle
