#!/usr/bin/env bash
# blobfuse2, with which Batch mounts containers.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin blobfuse "does Microsoft's repository have BLOBFUSE2_VERSION of versions.env? apt-cache madison blobfuse2"

key runner-microsoft "$MICROSOFT_KEY_URL" "$MICROSOFT_KEY_FINGERPRINT"
repository runner-microsoft \
  "deb [arch=amd64 signed-by=/usr/share/keyrings/runner-microsoft.gpg] $MICROSOFT_REPOSITORY noble main" \
  "$(only packages.microsoft.com blobfuse2)"
want fuse3 "blobfuse2=$BLOBFUSE2_VERSION"
hold blobfuse2
