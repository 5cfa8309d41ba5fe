# SPDX-License-Identifier: Apache-2.0
"""What the integration tests share: namespaces, programs, the admin socket, raw wire peers."""
