package authhelpers

import (
	"context"
	"errors"

	"gocloud.dev/blob"
)

func GoogleCredentialsMux(context.Context) (*blob.URLMux, error) {
	return nil, errors.New("this build has no Google Cloud Storage")
}
