// SPDX-License-Identifier: Apache-2.0
// The one place that names Asio's headers and aliases, so that a newer Asio (as_tuple left
// `experimental` in 1.23) is a change of one line. Asio's own code is compiled once, in
// asio_impl.cpp (ASIO_SEPARATE_COMPILATION).
#pragma once

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>

namespace causeway::net {

// Errors come back as the first element of a tuple; nothing throws after set-up.
inline constexpr auto as_result = asio::experimental::as_tuple(asio::use_awaitable);

}  // namespace causeway::net
