// Command podsecurity reads pods, one JSON object a line, and holds each against the restricted
// Pod Security Standard with the code that the Kubernetes API server itself uses. It prints a line
// for every pod that the standard refuses, and ends with 1 if there was one.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func main() {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks())
	if err != nil {
		fail(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	refused := false
	for lines.Scan() {
		var pod corev1.Pod
		if err := json.Unmarshal(lines.Bytes(), &pod); err != nil {
			fail(err)
		}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
		if !result.Allowed {
			refused = true
			fmt.Printf("%s: %s\n", pod.Name, result.ForbiddenDetail())
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
	if refused {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
