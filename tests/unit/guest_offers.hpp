// SPDX-License-Identifier: Apache-2.0
// Offers and a policy that the tests of the guest's offers share.
#pragma once

#include <cstdint>
#include <string>

#include "guest/framer/offer.hpp"

namespace causeway::test {

using guest::OfferPolicy;

inline OfferPolicy automatic() {
  OfferPolicy policy;
  policy.automatic_address = true;
  policy.automatic_gateway = true;
  policy.resolv_conf = "/nowhere/resolv.conf";
  return policy;
}

inline proto::Offer offer4(const std::string& address, unsigned prefix,
                           const char* gateway = nullptr) {
  proto::Offer offer;
  offer.address4 = {address, static_cast<std::uint8_t>(prefix)};
  if (gateway != nullptr) offer.gateway4 = gateway;
  return offer;
}

inline proto::Offer offer6(const std::string& address, unsigned prefix,
                           const char* gateway = nullptr) {
  proto::Offer offer;
  offer.address6 = {address, static_cast<std::uint8_t>(prefix)};
  if (gateway != nullptr) offer.gateway6 = gateway;
  return offer;
}

inline proto::Offer both() {
  auto offer = offer4("10.0.0.2", 24, "10.0.0.1");
  offer.address6 = {"fd00::2", 64};
  offer.gateway6 = "fd00::1";
  offer.resolvers = {"10.0.0.1", "fd00::53"};
  offer.mtu = 9000;
  return offer;
}

}  // namespace causeway::test
