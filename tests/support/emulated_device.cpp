// A device on the CPU's memory that is as strict as a GPU: every tensor of a call must be on it, and reading a number
// back to the host is counted. The CPU's own kernels compute, so that results can be compared with equality.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <unordered_set>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
std::atomic<int64_t> host_reads{0};

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kDevice, &memory)

// Calls return when they are done, so there is nothing to wait for.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return only_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only_stream(); }
  static c10::Stream only_stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, 0)); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr grown = memory.allocate(bytes);
    memory.copy_data(grown.mutable_get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  }
};
const bool is_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

// Elementwise functions of two tensors take a number that is a CPU tensor of no axes, on a GPU too.
const std::unordered_set<std::string> takes_host_numbers{
    "aten::add", "aten::sub", "aten::mul", "aten::div", "aten::pow",  "aten::lt",       "aten::le",
    "aten::gt",  "aten::ge",  "aten::eq",  "aten::ne",  "aten::add_", "aten::sub_",     "aten::mul_",
    "aten::div_", "aten::maximum", "aten::minimum"};

// Their result has a size that depends on values, so the host waits for it.
const std::unordered_set<std::string> waits_for_values{
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"};

void check_device(const at::Tensor& t, const std::string& name) {
  if (!t.defined() || t.device().type() == kDevice || (t.dim() == 0 && takes_host_numbers.count(name))) return;
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", name, " got one of ", t.sizes(), " on ",
              t.device());
}

at::Tensor on_host(const at::Tensor& t) {
  return at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), t.options().device(c10::kCPU).requires_grad(false));
}

at::Tensor on_device(const at::Tensor& t) { return t.defined() ? t.to(c10::Device(kDevice, 0)) : t; }

// The CPU's kernels on the same memory, with the same strides.
struct Lent {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;

  at::Tensor lend(const at::Tensor& t) {
    if (!t.defined() || t.is_cpu()) return t;
    for (const auto& [own, host] : pairs)
      if (own.is_same(t)) return host;
    // an empty one may be the place for a result, which then gets its size
    return pairs.emplace_back(t, t.numel() ? on_host(t) : at::empty(t.sizes(), t.options().device(c10::kCPU))).second;
  }

  at::Tensor take_back(const at::Tensor& t) {
    for (const auto& [own, host] : pairs) {
      if (!host.is_same(t)) continue;
      if (own.sizes() != t.sizes()) on_host(own.resize_(t.sizes())).copy_(t);
      return own;
    }
    return on_device(t);
  }
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  Lent memory_of;
  for (auto place = stack->end() - schema.arguments().size(); place != stack->end(); ++place) {
    c10::IValue& value = *place;
    if (value.isTensor()) {
      check_device(value.toTensor(), schema.name());
      value = memory_of.lend(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> lent;
      for (const at::Tensor& t : value.toTensorVector()) {
        check_device(t, schema.name());
        lent.push_back(memory_of.lend(t));
      }
      value = lent;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> lent;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
        if (t.has_value()) check_device(*t, schema.name());
        lent.push_back(t.has_value() ? std::optional(memory_of.lend(*t)) : std::nullopt);
      }
      value = lent;
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    }
  }
  bool is_read = waits_for_values.count(schema.name()) > 0;
  for (const auto& result : schema.returns())
    is_read |= result.type()->kind() != c10::TypeKind::TensorType && result.type()->kind() != c10::TypeKind::ListType;
  host_reads += is_read;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto place = stack->end() - schema.returns().size(); place != stack->end(); ++place) {
    c10::IValue& value = *place;
    if (value.isTensor()) {
      value = memory_of.take_back(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> returned;
      for (const at::Tensor& t : value.toTensorVector()) returned.push_back(memory_of.take_back(t));
      value = returned;
    }
  }
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           keys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool) {
  host_reads += target.is_cpu() && !self.is_cpu();
  on_host(target).copy_(on_host(self));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar read_number(const at::Tensor& self) {
  host_reads += 1;
  return at::native::_local_scalar_dense_cpu(on_host(self));
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset.has_value()) start = offset->expect_int();
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, source, offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, std::move(source)); }

// Convolution has no kernel of its own on other devices: torch asks the backend for it.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b,
                    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                    bool is_transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  for (const at::Tensor& t : {x, w, b.value_or(at::Tensor())}) check_device(t, "aten::convolution");
  std::optional<at::Tensor> bias;
  if (b.has_value() && b->defined()) bias = on_host(*b);
  return on_device(at::convolution_symint(on_host(x), on_host(w), bias, stride, padding, dilation, is_transposed,
                                          output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_back(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& w, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool is_transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  for (const at::Tensor& t : {gradient, x, w}) check_device(t, "aten::convolution_backward");
  const c10::SymInt channels = gradient.sym_size(1);
  auto [dx, dw, db] = at::convolution_backward_symint(
      on_host(gradient), on_host(x), on_host(w), c10::SymIntArrayRef(&channels, 1), stride, padding, dilation,
      is_transposed, output_padding, groups, wanted);
  return {on_device(dx), on_device(dw), on_device(db)};
}

int64_t take_host_reads() { return host_reads.exchange(0); }

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &read_number);
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("convolution_overrideable", &convolve);
  m.impl("convolution_backward_overrideable", &convolve_back);
  // torch has formulas for devices without these kernels, and they round differently
  for (const char* name : {"silu_backward", "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
                           "native_group_norm_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
}

TORCH_LIBRARY(emulated_device, m) { m.def("take_host_reads", &take_host_reads); }
