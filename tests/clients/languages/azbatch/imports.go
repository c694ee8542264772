// Package sdktests requires the SDK and what its own tests import, so that `go test -c` builds them.
package sdktests

import (
	_ "github.com/Azure/azure-sdk-for-go/sdk/batch/azbatch"
	_ "github.com/Azure/azure-sdk-for-go/sdk/internal/recording"
	_ "github.com/Azure/azure-sdk-for-go/sdk/internal/test/credential"
	_ "github.com/stretchr/testify/require"
)
