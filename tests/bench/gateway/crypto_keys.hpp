// SPDX-License-Identifier: Apache-2.0
// Keys and certificates of causeway-crypto-bench, made for it by openssl; nothing else uses them.
#pragma once

namespace causeway::gateway::bench {

inline constexpr const char* kEcKey =
    "-----BEGIN EC PRIVATE KEY-----\n"
    "MHcCAQEEIAeWY1U9nbV7ujR8tltZuBPzoQDP720/Oxfi1i8cjrgvoAoGCCqGSM49\n"
    "AwEHoUQDQgAEV2GEdS1n5IJK4qTToe2uZpfql7KNUjgH7wSnU0I7JyzvUCClRTBC\n"
    "v4l7ZOLc7DpwD9KwNEq8EdK9BFGvxeuU5Q==\n"
    "-----END EC PRIVATE KEY-----\n";

inline constexpr const char* kEcCertificate =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBoDCCAUegAwIBAgIUL2OB7l0PAihlPUGkO34B6AeJwJcwCgYIKoZIzj0EAwIw\n"
    "GDEWMBQGA1UEAwwNYmVuY2guZXhhbXBsZTAgFw0yNjExMzAxODU3NDNaGA8yMTI2\n"
    "MTEwNjE4NTc0M1owGDEWMBQGA1UEAwwNYmVuY2guZXhhbXBsZTBZMBMGByqGSM49\n"
    "AgEGCCqGSM49AwEHA0IABFdhhHUtZ+SCSuKk06HtrmaX6peyjVI4B+8Ep1NCOycs\n"
    "71AgpUUwQr+Je2Ti3Ow6cA/SsDRKvBHSvQRRr8XrlOWjbTBrMB0GA1UdDgQWBBRU\n"
    "bqGmzOGbRF9UZn3LXKD5GqE3SDAfBgNVHSMEGDAWgBRUbqGmzOGbRF9UZn3LXKD5\n"
    "GqE3SDAPBgNVHRMBAf8EBTADAQH/MBgGA1UdEQQRMA+CDWJlbmNoLmV4YW1wbGUw\n"
    "CgYIKoZIzj0EAwIDRwAwRAIgcNbawdtWJEXa6Y2KoBNJG2i7Dvg8bJ+H4iFjKKAL\n"
    "kXQCIFsSZI9iKIS5x75njZV7+cWT87Awfv7EQZCUN3XzUYwg\n"
    "-----END CERTIFICATE-----\n";

inline constexpr const char* kEc384Key =
    "-----BEGIN EC PRIVATE KEY-----\n"
    "MIGkAgEBBDCO/ucOc4y6b+b98ULLsL+6i1bExLpPxURa3555Yv1wDZPDEA7L8HI+\n"
    "1fEJkuZWSZ+gBwYFK4EEACKhZANiAAQm3UHhu7QerqLV6NjyQ+dFWCdNKi7BwTyR\n"
    "U6F+W5iuasOqHUPzDiUSFhTRIPDYKtSCOtAuqmhTeuv38gmElOkohVbGtkq/i2Ph\n"
    "MCeaxwjX70qJl7ere3ALPBkfOI2M+Ko=\n"
    "-----END EC PRIVATE KEY-----\n";

inline constexpr const char* kRsaKey =
    "-----BEGIN RSA PRIVATE KEY-----\n"
    "MIIEpAIBAAKCAQEArBAKamD3xdGZWewNYo+rNXrUkw6mxvF5nixx0/fk50M8C65N\n"
    "DHBNRLuxT+pJHepv7byh7j3b53/Af0Az+4I99EqJik4q+3ymhKdQPvJcazo870aw\n"
    "sEuC7Pg4Z3Ydom6iFyj4Xm5kn5uplbheiLYoUpvJ6mXl/bAZIAxwAHki6yhj1wKG\n"
    "P0SnRZQWSy8x3BUSFSIx/yo/Kb+rpZZwHhuxu6s908cbfInV4+yFNp5pzI+5toyV\n"
    "ywCkWKsSWnZgmcgbLPUz9dpjn0YD63EEtd2nEdr6rOCCYOIUVE/gxDSnBA2cm162\n"
    "t6bHQpBGD8pUSyiZLiKLWMTpkOITVLBxxzNBjwIDAQABAoIBADTNd2TN/Tun5vfB\n"
    "iRoGHPR8jV/TzzqeQERaP1RdbtHJwFOVWe/HRu8g6nkr3ORhXZgHm2oRcbrJabmj\n"
    "alB0165wcWUQOACVcESlU+r9VX9SkACeIPr5MWSniCe4B8AhU3zoBdB08ExK6PAZ\n"
    "dGlf/V/cj0pvmvUPZaaAKp76jcy8R474CCXacA4GckA0f4dB4ubrEya00sZr841I\n"
    "bAGaC3iigL171Ps7GjRBGCJwDbUfv8CQdjLhTd+o4hG6r6szqZOYgZv/R9vy/0/1\n"
    "e/LkvgXtTUEIs8hLHVANTf1Tjya3xLI++DjzHHloReZCeVBCEvg9lzFJ0wowbstv\n"
    "59eLewECgYEA1m+NAgyTrVEIejXeBMFRq9Ew1aDQe40Wgdir0LplVrNjQSZoK4lS\n"
    "bVwB9vThULt7ftkzOIkMix/QqZCv9ZrYIhFbjG00i09U2GYwmIX9t6Ju5ztvzXMN\n"
    "BzibeDfLwrGHxsz5qCZghT1H61Shy8yY7o3C9MkOS29d8hiZNO+W5BcCgYEAzWno\n"
    "flGdWZFHyZ5LRgFJr3iDQaqfF2Bkz3Y1c3mhanny8RGdbezm5MV7My0QmLIAndbU\n"
    "Sd4Qmeww8U8Ces5sjUeQbGpKjnHQpRFO7zyyTcwlkbuzPfqtRChmboXfd2/3INRB\n"
    "FF9v8GXBvor89JpRTjzG2ciFewzm/nYmeGts4UkCgYEAqpJTRRUCB3SU3LmqoHey\n"
    "YozlXpksHYtuIt1aVo9eeuf5BOLrK+5w3cK5YVsLO2/W3WEiiE8j5irpjWglP6Xr\n"
    "VLYf74USrdnt8LDg6QJ0frU7qL2zwmZJL7xMlwUzFOyox29XC/VzA6lqYvyQMw/N\n"
    "erzTHmor779nqGL+w4ftrAMCgYAQlWtSv24PrB36lhAHr9TuGLGoHIlJjtu0sBty\n"
    "njA882l8supd1JFziMoAgLPlUAGivJRY/leixaHR6YoOthmnck6johUw2Nl6aiJQ\n"
    "SDsw8rlZwaif6VwRs51JcP9wmhZ+jQRQC8ByzRROONRhPxAvW9LGBF1aaNlBU/KZ\n"
    "KDsbGQKBgQCXEmP0cqp8YatvBsBLM/Vq9CoWBn6a8aZH8hRYqDThHkUkf0Qa/pJa\n"
    "THLUsZus9dhAGDLk6wAbyORg5V2PNFiDIEoiWO86kBWjSyy9THnneQJCDmtOpWQz\n"
    "A+J54GSE00rdf5nJFTQroqqXPjuxZGPd0BDOcBVmjzRtfiaBq8vjxg==\n"
    "-----END RSA PRIVATE KEY-----\n";

inline constexpr const char* kRsaCertificate =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIDLTCCAhWgAwIBAgIUXsoXnUOPNqQMV8lmS75hMzWtU+8wDQYJKoZIhvcNAQEL\n"
    "BQAwGDEWMBQGA1UEAwwNYmVuY2guZXhhbXBsZTAgFw0yNjExMzAxODU3NDRaGA8y\n"
    "MTI2MTEwNjE4NTc0NFowGDEWMBQGA1UEAwwNYmVuY2guZXhhbXBsZTCCASIwDQYJ\n"
    "KoZIhvcNAQEBBQADggEPADCCAQoCggEBAKwQCmpg98XRmVnsDWKPqzV61JMOpsbx\n"
    "eZ4scdP35OdDPAuuTQxwTUS7sU/qSR3qb+28oe492+d/wH9AM/uCPfRKiYpOKvt8\n"
    "poSnUD7yXGs6PO9GsLBLguz4OGd2HaJuohco+F5uZJ+bqZW4Xoi2KFKbyepl5f2w\n"
    "GSAMcAB5IusoY9cChj9Ep0WUFksvMdwVEhUiMf8qPym/q6WWcB4bsburPdPHG3yJ\n"
    "1ePshTaeacyPubaMlcsApFirElp2YJnIGyz1M/XaY59GA+txBLXdpxHa+qzggmDi\n"
    "FFRP4MQ0pwQNnJtetremx0KQRg/KVEsomS4ii1jE6ZDiE1SwccczQY8CAwEAAaNt\n"
    "MGswHQYDVR0OBBYEFC3qkd5DITn12vQtv2xSgeS16McFMB8GA1UdIwQYMBaAFC3q\n"
    "kd5DITn12vQtv2xSgeS16McFMA8GA1UdEwEB/wQFMAMBAf8wGAYDVR0RBBEwD4IN\n"
    "YmVuY2guZXhhbXBsZTANBgkqhkiG9w0BAQsFAAOCAQEAaLQdZS9oPWMRY9EqD5md\n"
    "so2MPtKNQJQQLroAJgqrkWHr7WUfplYmf5zVVwhLJ4nRSpCUSzJntd3kXOEyNJ+p\n"
    "MpaxlQx+r6olQB3blb6TvvgkQ2RQ8MlP7X2kpVDDt5Intunto6nKzRPCvfoYUr8X\n"
    "Wj9NcYiXdVfLbHXBVhM8YCC7lUwOUqVW0NCEUWgExXaarwJ1ouI3S5GTS7Dz0ez4\n"
    "1uyiQS5hbrlLd+tNMP2+c8qoVvcggeDCJJ+Aktj/EBNv82DSt2RRSnvqijecfIUY\n"
    "GsYpxAMH66/7iKN2EzvjF8PJoooLYgPxDsYTDOFxoXzZ1K2XQLJJoA1L7JfUbPTM\n"
    "6A==\n"
    "-----END CERTIFICATE-----\n";

}  // namespace causeway::gateway::bench
