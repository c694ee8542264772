package glamour

type TermRenderer struct{}

type TermRendererOption struct{}

func NewTermRenderer(...TermRendererOption) (*TermRenderer, error) { return &TermRenderer{}, nil }

func WithAutoStyle() TermRendererOption { return TermRendererOption{} }

func WithWordWrap(int) TermRendererOption { return TermRendererOption{} }

// Render leaves Markdown as it is.
func (*TermRenderer) Render(text string) (string, error) { return text, nil }
