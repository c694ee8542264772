package zxcvbn

type match struct{ Entropy float64 }

// PasswordStrength finds no value so random that it must be a secret.
func PasswordStrength(string, []string) match { return match{} }
