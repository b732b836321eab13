#!/usr/bin/env bash
# Builds kube-apiserver and kubectl 1.20.2 from Debian 12's own source package, which holds the complete vendored tree, with
# Debian's Go 1.19, and takes etcd from Debian. Three to five minutes on two cores and 2 GB of scratch the first time; 120 MB stay.
. "$(dirname "$0")/../common.sh"

need flock util-linux
need curl curl
need openssl openssl
STAMP=$(stamp_of "$REAL/kube/install.sh")
prepare_cache kube "$STAMP" || exit 0
command -v apt-get >/dev/null || die "the API server is built from Debian's source package, and there is no apt-get here"
say "setting up the API server in $HOME_DIR (three to five minutes, once)"
BUILD=$HOME_DIR/build
mkdir -p "$BUILD"/{lists/partial,archives/partial,sources,root,go/src/k8s.io} "$HOME_DIR/bin"
cd "$BUILD"

# Package lists of our own, with sources, so that the machine's stay as they are. Only Debian's sources matter.
if [ -f /etc/apt/sources.list.d/debian.sources ]; then
  sed 's/^Types:.*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources >sources/debian.sources
else
  sed -n 's/^deb \(.*debian.*\)/deb \1\ndeb-src \1/p' /etc/apt/sources.list >sources/debian.list
fi
cat >apt.conf <<CONF
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$BUILD/sources";
Dir::State::lists "$BUILD/lists";
Dir::Cache "$BUILD";
APT::Sandbox::User "$(id -un)";
CONF
export APT_CONFIG=$BUILD/apt.conf
apt-get update -qq
apt-get source -qq --download-only kubernetes >/dev/null
apt-get download -qq golang-1.19-go golang-1.19-src etcd-server golang-github-modern-go-reflect2-dev
unset APT_CONFIG
for package in *.deb; do dpkg -x "$package" root; done
ARCHIVE=$(ls kubernetes_1.20.*.orig.tar.gz 2>/dev/null) || die "Debian's kubernetes source is not 1.20 here: this needs Debian 12 (bookworm)"
mkdir go/src/k8s.io/kubernetes
tar xzf "$ARCHIVE" --strip-components=1 -C go/src/k8s.io/kubernetes

export GOROOT=$BUILD/root/usr/lib/go-1.19 GOPATH=$BUILD/go GOCACHE=$BUILD/gocache
export GO111MODULE=off GOFLAGS='' GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0
PATH=$GOROOT/bin:$PATH
cd go/src/k8s.io/kubernetes

# The vendored reflect2 1.0.1 crashes under Go 1.18 and later at the first custom resource; Debian packages 1.0.2.
rm -r vendor/github.com/modern-go/reflect2
mkdir vendor/github.com/modern-go/reflect2
cp "$BUILD"/root/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/

# The OpenAPI definitions, by which server-side apply knows the types, are generated, and the source package leaves them out.
# Input: every package that asks for it in a comment, staged ones by their vendored import path.
go build -o "$BUILD/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
grep -rlE --include='*.go' --exclude='*_test.go' '^\s*//\s*\+k8s:openapi-gen=' pkg cmd plugin staging |
  grep -vE '/sample-|_examples|code-generator' |
  xargs -n 1 dirname | sort -u |
  sed -E 's#^staging/src/#k8s.io/kubernetes/vendor/#; t; s#^#k8s.io/kubernetes/#' >"$BUILD/openapi-packages"
"$BUILD/openapi-gen" --logtostderr -i "$(paste -sd, "$BUILD/openapi-packages")" \
  -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null --output-base "$GOPATH/src"

for program in kube-apiserver kubectl; do
  go build -p "$(nproc)" -tags providerless -ldflags '-s -w' -o "$HOME_DIR/bin/$program" "./cmd/$program"
done
cp "$BUILD/root/usr/bin/etcd" "$HOME_DIR/bin/"

cd "$HOME_DIR"
# Go marks its caches read-only.
chmod -R u+w "$BUILD"
rm -rf "$BUILD"
finish_cache "$STAMP"
say "the API server is set up"
