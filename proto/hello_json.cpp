// SPDX-License-Identifier: Apache-2.0
// Theory of operation: the JSON of the hello and of the offer.
//
// nlohmann's SAX parser drives one handler. The handler keeps a stack of the open objects and
// arrays (bounded by kMaxHelloDepth) and, for the place that the next value goes to, a Field. A
// value that is not of its field's type or bounds stops the parser with a HelloError; values of
// unknown fields are dropped, whatever they hold. The first error wins. Nothing grows beyond what
// 4096 bytes of input can hold.
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "proto/hello.hpp"

namespace causeway::proto {

namespace {

constexpr std::size_t kMaxFeatureNames = 32;

constexpr std::array<std::pair<Features, std::string_view>, 3> kFeatureNames = {{
    {kFeatureOffload, "offload"},
    {kFeatureUso, "uso"},
    {kFeatureKeepalive, "keepalive"},
}};

enum class Field : std::uint8_t {
  ignored,
  hello_root,
  offer_root,
  versions,
  version,
  session,
  lane,
  lanes,
  features,
  feature,
  mtu,
  max_frame,
  offer,
  refuse,
  address4,
  address6,
  gateway4,
  gateway6,
  resolvers,
  resolver,
  offer_mtu,
};

constexpr std::array<std::pair<std::string_view, Field>, 9> kHelloFields = {{
    {"versions", Field::versions},
    {"session", Field::session},
    {"lane", Field::lane},
    {"lanes", Field::lanes},
    {"features", Field::features},
    {"mtu", Field::mtu},
    {"max_frame", Field::max_frame},
    {"offer", Field::offer},
    {"refuse", Field::refuse},
}};

constexpr std::array<std::pair<std::string_view, Field>, 6> kOfferFields = {{
    {"address4", Field::address4},
    {"address6", Field::address6},
    {"gateway4", Field::gateway4},
    {"gateway6", Field::gateway6},
    {"resolvers", Field::resolvers},
    {"mtu", Field::offer_mtu},
}};

constexpr std::string_view kAddress4Characters = "0123456789.";
constexpr std::string_view kAddress6Characters = "0123456789abcdefABCDEF:.";
constexpr std::string_view kReasonCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_-";

template <std::size_t N>
Field find_field(const std::array<std::pair<std::string_view, Field>, N>& fields,
                 std::string_view key) {
  for (const auto& [name, field] : fields) {
    if (name == key) return field;
  }
  return Field::ignored;
}

bool only_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

std::optional<std::byte> hex_byte(char high, char low) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto h = kDigits.find(high);
  const auto l = kDigits.find(low);
  if (h == std::string_view::npos || l == std::string_view::npos) return std::nullopt;
  return static_cast<std::byte>(h << 4 | l);
}

// The member functions are the interface that nlohmann::json::sax_parse calls; false stops it.
class Handler {
 public:
  explicit Handler(Field root) : root_(root) {}

  bool null() { return scalar(); }
  bool boolean(bool) { return scalar(); }
  bool number_integer(std::int64_t) {  // only negative numbers (and -0) come here
    return takes_number(place()) ? fail(HelloError::out_of_range) : scalar();
  }
  bool number_unsigned(std::uint64_t value);
  bool number_float(double, const std::string& text) {  // integers above 64 bits come here too
    return takes_number(place()) && text.find_first_of(".eE") == std::string::npos
               ? fail(HelloError::out_of_range)
               : scalar();
  }
  bool string(std::string& value);
  bool binary(std::vector<std::uint8_t>&) { return scalar(); }
  bool start_object(std::size_t);
  bool key(std::string& name);
  bool end_object() { return pop(); }
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) {
    return fail(HelloError::syntax);
  }

  // What was parsed, once the parser has returned true.
  std::variant<Hello, HelloError> finish_hello();
  Offer& offer() { return offer_; }
  [[nodiscard]] HelloError error() const { return error_.value_or(HelloError::syntax); }

 private:
  struct Level {
    Field container;  // a root, offer, a list, or ignored
    bool object;
    Field next = Field::ignored;  // in an object: where the value of the last key goes
    std::set<std::string, std::less<>> keys = {};
  };

  bool fail(HelloError error) {
    if (!error_) error_ = error;
    return false;
  }
  bool pop() {
    levels_.pop_back();
    return true;
  }
  static bool takes_number(Field field) {
    return field == Field::version || field == Field::lane || field == Field::lanes ||
           field == Field::mtu || field == Field::max_frame || field == Field::offer_mtu;
  }
  // Where the value that comes now goes.
  [[nodiscard]] Field place() const;
  // A value that no known field takes.
  bool scalar();
  template <class T>
  bool set(T& to, std::uint64_t value, std::uint64_t lowest, std::uint64_t highest);
  bool set_session(std::string_view value);
  bool set_text(std::string& to, std::string_view value, std::string_view characters,
                std::size_t longest);
  bool set_address(std::optional<OfferAddress>& to, std::string_view value,
                   std::string_view characters, std::uint8_t longest_prefix);
  bool set_feature(std::string_view name);

  Field root_;
  std::vector<Level> levels_;
  std::optional<HelloError> error_;
  Hello hello_;
  Offer offer_;
  bool has_session_ = false;
  std::size_t versions_ = 0;
  std::size_t feature_names_ = 0;
};

Field Handler::place() const {
  if (levels_.empty()) return root_;
  const Level& level = levels_.back();
  if (level.object) return level.next;
  switch (level.container) {
    case Field::versions:
      return Field::version;
    case Field::features:
      return Field::feature;
    case Field::resolvers:
      return Field::resolver;
    default:
      return Field::ignored;
  }
}

bool Handler::scalar() {
  if (levels_.empty()) return fail(HelloError::not_an_object);
  return place() == Field::ignored || fail(HelloError::wrong_type);
}

template <class T>
bool Handler::set(T& to, std::uint64_t value, std::uint64_t lowest, std::uint64_t highest) {
  if (value < lowest || value > highest) return fail(HelloError::out_of_range);
  to = static_cast<T>(value);
  return true;
}

bool Handler::number_unsigned(std::uint64_t value) {
  switch (place()) {
    case Field::version:
      if (++versions_ > 2) return fail(HelloError::out_of_range);
      return set(versions_ == 1 ? hello_.version_min : hello_.version_max, value, 1, 0xffff);
    case Field::lane:
      return set(hello_.lane, value, 0, kMaxLanes - 1);
    case Field::lanes:
      return set(hello_.lanes, value, 1, kMaxLanes);
    case Field::mtu:
      return set(hello_.mtu, value, kMinMtu, kMaxMtu);
    case Field::max_frame:  // a later version may take longer ones: negotiate() lowers it
      return set(hello_.max_frame, value, kMinMaxFrame, 0xffffff);
    case Field::offer_mtu:
      return set(offer_.mtu.emplace(), value, kMinMtu, kMaxMtu);
    default:
      return scalar();
  }
}

bool Handler::set_text(std::string& to, std::string_view value, std::string_view characters,
                       std::size_t longest) {
  if (value.size() > longest) return fail(HelloError::overlong);
  if (!only_of(value, characters)) return fail(HelloError::bad_value);
  to = value;
  return true;
}

bool Handler::set_session(std::string_view value) {
  if (value.size() > 2 * hello_.session.size()) return fail(HelloError::overlong);
  if (value.size() < 2 * hello_.session.size()) return fail(HelloError::bad_value);
  for (std::size_t i = 0; i < hello_.session.size(); ++i) {
    const auto byte = hex_byte(value[2 * i], value[2 * i + 1]);
    if (!byte) return fail(HelloError::bad_value);
    hello_.session[i] = *byte;
  }
  has_session_ = true;
  return true;
}

bool Handler::set_address(std::optional<OfferAddress>& to, std::string_view value,
                          std::string_view characters, std::uint8_t longest_prefix) {
  if (value.size() > kMaxAddressText) return fail(HelloError::overlong);
  const auto slash = value.find('/');
  if (slash == std::string_view::npos) return fail(HelloError::bad_value);
  const auto prefix = value.substr(slash + 1);
  if (prefix.size() > 3 || !only_of(prefix, "0123456789") ||
      (prefix.size() > 1 && prefix.front() == '0')) {
    return fail(HelloError::bad_value);
  }
  unsigned bits = 0;
  for (const char digit : prefix) {
    bits = bits * 10 + static_cast<unsigned>(digit - '0');
  }
  OfferAddress& address = to.emplace();
  return set(address.prefix, bits, 0, longest_prefix) &&
         set_text(address.address, value.substr(0, slash), characters, kMaxAddressText);
}

bool Handler::set_feature(std::string_view name) {
  if (++feature_names_ > kMaxFeatureNames) return fail(HelloError::out_of_range);
  if (name.size() > kMaxKey) return fail(HelloError::overlong);
  for (const auto& [bit, known] : kFeatureNames) {
    if (known == name) hello_.features |= bit;
  }
  return true;
}

bool Handler::string(std::string& value) {
  switch (place()) {
    case Field::session:
      return set_session(value);
    case Field::refuse:
      return set_text(hello_.refuse.emplace(), value, kReasonCharacters, kMaxReason);
    case Field::feature:
      return set_feature(value);
    case Field::address4:
      return set_address(offer_.address4, value, kAddress4Characters, 32);
    case Field::address6:
      return set_address(offer_.address6, value, kAddress6Characters, 128);
    case Field::gateway4:
      return set_text(offer_.gateway4.emplace(), value, kAddress4Characters, kMaxAddressText);
    case Field::gateway6:
      return set_text(offer_.gateway6.emplace(), value, kAddress6Characters, kMaxAddressText);
    case Field::resolver:
      if (offer_.resolvers.size() == kMaxResolvers) return fail(HelloError::out_of_range);
      return set_text(offer_.resolvers.emplace_back(), value, kAddress6Characters, kMaxAddressText);
    default:
      return scalar();
  }
}

bool Handler::start_object(std::size_t) {
  const Field field = place();
  if (field != Field::ignored && field != Field::hello_root && field != Field::offer_root &&
      field != Field::offer) {
    return fail(HelloError::wrong_type);
  }
  if (levels_.size() == kMaxHelloDepth) return fail(HelloError::too_deep);
  if (field == Field::offer) hello_.offer.emplace();
  levels_.push_back(Level{.container = field, .object = true});
  return true;
}

bool Handler::key(std::string& name) {
  if (name.size() > kMaxKey) return fail(HelloError::overlong);
  Level& level = levels_.back();
  if (!level.keys.insert(name).second) return fail(HelloError::duplicate_key);
  if (level.container == Field::hello_root) {
    level.next = find_field(kHelloFields, name);
  } else if (level.container == Field::offer || level.container == Field::offer_root) {
    level.next = find_field(kOfferFields, name);
  }
  return true;
}

bool Handler::start_array(std::size_t) {
  if (levels_.empty()) return fail(HelloError::not_an_object);
  const Field field = place();
  if (field != Field::ignored && field != Field::versions && field != Field::features &&
      field != Field::resolvers) {
    return fail(HelloError::wrong_type);
  }
  if (levels_.size() == kMaxHelloDepth) return fail(HelloError::too_deep);
  levels_.push_back(Level{.container = field, .object = false});
  return true;
}

bool Handler::end_array() {
  if (levels_.back().container == Field::versions &&
      (versions_ != 2 || hello_.version_min > hello_.version_max)) {
    return fail(HelloError::out_of_range);
  }
  return pop();
}

std::variant<Hello, HelloError> Handler::finish_hello() {
  if (hello_.refuse) {  // whatever else a refusal says has no meaning
    Hello refused;
    refused.version_min = hello_.version_min;
    refused.version_max = hello_.version_max;
    refused.refuse = std::move(hello_.refuse);
    return refused;
  }
  if (versions_ == 0 || !has_session_) return HelloError::missing;
  if (hello_.lane >= hello_.lanes) return HelloError::out_of_range;
  if (hello_.offer) hello_.offer = std::move(offer_);
  return std::move(hello_);
}

// False with the handler's error set. The parser itself takes a byte order mark for nothing and a
// NUL for the end of the text; RFC 8259 allows a sender neither.
bool parse(std::span<const std::byte> json, Handler& handler) try {
  std::string text(json.size(), '\0');
  std::transform(json.begin(), json.end(), text.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  if (text.size() > kMaxHello || text.find('\0') != std::string::npos || text.starts_with('\xef')) {
    return false;
  }
  return nlohmann::json::sax_parse(text, &handler);
} catch (const std::exception&) {  // out of memory: the hello is not taken
  return false;
}

nlohmann::json offer_json(const Offer& offer) {
  auto json = nlohmann::json::object();
  const auto put_address = [&json](const char* key, const std::optional<OfferAddress>& address) {
    if (address) json[key] = address->address + "/" + std::to_string(address->prefix);
  };
  put_address("address4", offer.address4);
  put_address("address6", offer.address6);
  if (offer.gateway4) json["gateway4"] = *offer.gateway4;
  if (offer.gateway6) json["gateway6"] = *offer.gateway6;
  if (!offer.resolvers.empty()) json["resolvers"] = offer.resolvers;
  if (offer.mtu) json["mtu"] = *offer.mtu;
  return json;
}

std::vector<std::byte> json_bytes(const nlohmann::json& json) {
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(),
                 [](char character) { return static_cast<std::byte>(character); });
  return bytes;
}

}  // namespace

std::variant<Hello, HelloError> decode_hello(std::span<const std::byte> json) {
  Handler handler(Field::hello_root);
  if (!parse(json, handler)) return handler.error();
  return handler.finish_hello();
}

std::variant<Offer, HelloError> decode_offer(std::span<const std::byte> json) {
  Handler handler(Field::offer_root);
  if (!parse(json, handler)) return handler.error();
  return std::move(handler.offer());
}

std::vector<std::byte> encode_offer(const Offer& offer) {
  auto bytes = json_bytes(offer_json(offer));
  const auto decoded = decode_offer(bytes);
  const auto* back = std::get_if<Offer>(&decoded);
  if (back == nullptr || *back != offer) bytes.clear();
  return bytes;
}

std::vector<std::byte> encode_preface(const Hello& hello) {
  nlohmann::json json = {{"versions", {hello.version_min, hello.version_max}}};
  if (hello.refuse) {
    json["refuse"] = *hello.refuse;
  } else {
    json["session"] = session_text(hello.session);
    json["lane"] = hello.lane;
    json["lanes"] = hello.lanes;
    json["mtu"] = hello.mtu;
    json["max_frame"] = hello.max_frame;
    auto& features = json["features"] = nlohmann::json::array();
    for (const auto& [bit, name] : kFeatureNames) {
      if ((hello.features & bit) != 0) features.push_back(name);
    }
    if (hello.offer) json["offer"] = offer_json(*hello.offer);
  }
  const auto body = json_bytes(json);
  const auto decoded = decode_hello(body);
  const auto* back = std::get_if<Hello>(&decoded);
  if (back == nullptr || *back != hello) return {};

  std::vector<std::byte> preface(kPrefaceMagic.begin(), kPrefaceMagic.end());
  for (const std::size_t number : {std::size_t{kPrefaceVersion}, body.size()}) {
    preface.push_back(static_cast<std::byte>(number >> 8));
    preface.push_back(static_cast<std::byte>(number & 0xff));
  }
  preface.insert(preface.end(), body.begin(), body.end());
  return preface;
}

}  // namespace causeway::proto
