// One binary that is etcd, the Kubernetes control plane and kubectl: which of them runs is the name it is called by.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	etcd "go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const usageExitCode = 64

// The kubectl command parses os.Args for plugins while it is built, so a command is made only once it is chosen.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	if name == "etcd" {
		etcd.Main(os.Args)
		return
	}
	newCommand, known := commands[name]
	if !known {
		names := append(slices.Sorted(maps.Keys(commands)), "etcd")
		fmt.Fprintf(os.Stderr, "called as %q; make a link to this file named one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(usageExitCode)
	}
	os.Exit(cli.Run(newCommand()))
}
