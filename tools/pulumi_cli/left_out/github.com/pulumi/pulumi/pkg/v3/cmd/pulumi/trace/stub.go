package trace

import "github.com/spf13/cobra"

func NewViewTraceCmd() *cobra.Command { return &cobra.Command{Use: "view-trace", Hidden: true} }

func NewConvertTraceCmd() *cobra.Command { return &cobra.Command{Use: "convert-trace", Hidden: true} }
