package operations

import (
	"context"
	"errors"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
)

type LogEntry struct {
	ID        string
	Timestamp int64
	Message   string
}

type ResourceFilter string

type LogQuery struct {
	StartTime, EndTime *time.Time
	ResourceFilter     *ResourceFilter
}

type Provider struct{}

func (Provider) GetLogs(context.Context, LogQuery) (*[]LogEntry, error) {
	return nil, errors.New("this build reads no logs of other clouds")
}

type Resource struct{}

func NewResourceTree([]*resource.State) Resource { return Resource{} }

func (Resource) OperationsProvider(map[config.Key]string) Provider { return Provider{} }
