#!/usr/bin/env bash
# Install blobfuse2, which Batch uses to mount blob containers.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
begin blobfuse "set BLOBFUSE2_VERSION in versions.env to a version of: apt-cache madison blobfuse2"

key runner-microsoft "$MICROSOFT_KEY_URL" "$MICROSOFT_KEY_FINGERPRINT"
repository runner-microsoft \
  "deb [arch=amd64 signed-by=/usr/share/keyrings/runner-microsoft.gpg] $MICROSOFT_REPOSITORY noble main" \
  "$(only packages.microsoft.com blobfuse2)"
want fuse3 "blobfuse2=$BLOBFUSE2_VERSION"
hold blobfuse2
