//go:build tools

// Package pulumihost pins the language host that tools/build_pulumi.sh builds for the engine tests.
package pulumihost

import _ "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
