package cloud

import (
	"context"
	"errors"

	"github.com/pulumi/pulumi/pkg/v3/backend/httpstate/client"
	"github.com/spf13/cobra"
)

type APIError struct {
	ExitCode int
	Silent   bool
}

func (*APIError) Error() string { return "" }

type ResolvedContext struct {
	Client   *client.Client
	OrgName  string
	LoggedIn bool
}

func ResolveContext(context.Context) (*ResolvedContext, error) {
	return nil, errors.New("this build has no `pulumi api`")
}

func NewAPICmd() *cobra.Command { return &cobra.Command{Use: "api", Hidden: true} }
