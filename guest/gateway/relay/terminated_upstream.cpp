// SPDX-License-Identifier: Apache-2.0
// Terminated's steps where TLS is spoken to the upstream too: plaintext goes from the records of
// one engine into those of the other.
#include <utility>

#include "guest/gateway/relay/terminated.hpp"

namespace causeway::gateway {

using tls::Status;

// ---- up ----

Terminated::Step Terminated::write_sealed_up(UpstreamTls& tls) {
  if (!tls.out.pending()) (void)tls.out.seal(pool_, *tls.engine, {});
  switch (tls.out.write(upstream_, progress_)) {
    case RecordsOut::Put::some:
      return Step::moved;
    case RecordsOut::Put::full:
      return Step::wait_write;
    case RecordsOut::Put::reset:
      upstream_cut_ = true;
      break;
    case RecordsOut::Put::broken:
      break;
  }
  // An upstream that closed has no use for a close_notify, the last that is written.
  return up_ends_ && tls.engine->write_closed() ? Step::over : broken_up(false);
}

Terminated::Step Terminated::seal_up(UpstreamTls& tls) {
  // It failed: the other direction says so, once what came before is delivered.
  if (!tls.engine->established()) return broken_up(false);
  const auto sealed = tls.out.seal(pool_, *tls.engine, in_.pieces());
  if (sealed.status == Status::error) return fail(Finish::upstream_tls_failed);
  in_.delivered(sealed.consumed);
  counters_.bytes_to_upstream.add(sealed.consumed);
  return Step::moved;
}

// ---- down ----

Terminated::Step Terminated::step_down_tls(UpstreamTls& tls) {
  if (tls.in.has_pieces()) return seal_down(tls);
  if (upstream_ended_) return end_down();
  if (tls.in.may_open()) return open_down(tls);
  switch (tls.in.receive(pool_, upstream_, progress_)) {
    case RecordsIn::Got::some:
      return Step::moved;
    case RecordsIn::Got::dry:
      return Step::wait_read;
    case RecordsIn::Got::end:
      tls.truncated = !upstream_cut_;
      break;
    case RecordsIn::Got::failed:
      break;
  }
  return fail(Finish::upstream_reset);
}

Terminated::Step Terminated::open_down(UpstreamTls& tls) {
  switch (tls.in.open(*tls.engine)) {
    case Status::done:
    case Status::need_read:
      break;
    case Status::closed:
      upstream_ended_ = true;
      break;
    case Status::need_write:
    case Status::truncated:
    case Status::error:
      // As in open_up().
      if (!tls.in.has_pieces()) return fail(Finish::upstream_tls_failed);
      break;
  }
  if (!tls.engine->output().empty() && up_ == State::wait_read) {
    if (auto end = drive_up()) return fail(*end);
  }
  return Step::moved;
}

Terminated::Step Terminated::seal_down(UpstreamTls& tls) {
  const auto sealed = out_.seal(pool_, *engine_, tls.in.pieces());
  if (sealed.status == Status::error) return fail(Finish::tls_failed);
  tls.in.delivered(sealed.consumed);
  counters_.bytes_to_client.add(sealed.consumed);
  return Step::moved;
}

}  // namespace causeway::gateway
