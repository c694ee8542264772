//go:build tools

// Package pulumicli pins the Pulumi CLI that tools/build_pulumi.sh builds for the engine tests.
package pulumicli

import _ "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
