package neo

import "github.com/spf13/cobra"

func NewNeoCmd() *cobra.Command { return &cobra.Command{Use: "neo", Hidden: true} }
