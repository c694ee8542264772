package env

import "github.com/spf13/cobra"

func NewEnvCmd() *cobra.Command { return &cobra.Command{Use: "env", Hidden: true} }
