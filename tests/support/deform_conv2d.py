"""Deformable convolution three times: a torch op, a loop over numbers, a body in ONNX text.

The op stands in for torchvision's, under its name and with its schema, because torchvision is not a dependency.
"""

import math

import numpy as np
import torch

NAME = "torchvision::deform_conv2d"
INPUTS = ["input", "weight", "offset", "mask", "bias"]
ATTRIBUTES = {
    "stride": ["stride_h", "stride_w"],
    "padding": ["pad_h", "pad_w"],
    "dilation": ["dilation_h", "dilation_w"],
    "groups": "groups",
    "offset_groups": "offset_groups",
    "use_mask": "use_mask",
}
_SCHEMA = (
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor"
)


def register():
    """Define the op; it lives as long as the library that is returned."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(_SCHEMA)
    library.impl("deform_conv2d", deform_conv2d, "CompositeExplicitAutograd")
    torch.library.register_fake(NAME, _shape, lib=library)
    return library


def deform_conv2d(
    x, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, groups, offset_groups, use_mask
):
    """Every tap looks where its offset sends it, between four pixels; zero outside."""
    n, c, h, w = x.shape
    kh, kw = weight.shape[2:]
    oh, ow = offset.shape[2:]
    offsets = offset.view(n, offset_groups, kh, kw, 2, oh, ow)
    rows = torch.arange(oh).view(oh, 1) * stride_h - pad_h + (torch.arange(kh) * dil_h).view(kh, 1, 1, 1)
    columns = torch.arange(ow).view(1, ow) * stride_w - pad_w + (torch.arange(kw) * dil_w).view(1, kw, 1, 1)
    y, z = rows + offsets[:, :, :, :, 0], columns + offsets[:, :, :, :, 1]
    pixels = x.reshape(n, offset_groups, c // offset_groups, h * w)

    def pixel(i, j):
        is_inside = (i >= 0) & (i < h) & (j >= 0) & (j < w)
        index = (i.clamp(0, h - 1) * w + j.clamp(0, w - 1)).long().flatten(2)
        found = pixels.gather(3, index.unsqueeze(2).expand(-1, -1, pixels.shape[2], -1))
        return found * is_inside.flatten(2).unsqueeze(2)

    top, left = y.floor(), z.floor()
    down, right = ((y - top).flatten(2).unsqueeze(2), (z - left).flatten(2).unsqueeze(2))
    upper = pixel(top, left) * (1 - right) + pixel(top, left + 1) * right
    lower = pixel(top + 1, left) * (1 - right) + pixel(top + 1, left + 1) * right
    sampled = upper * (1 - down) + lower * down
    if use_mask:
        sampled = sampled * mask.reshape(n, offset_groups, 1, -1)
    columns = sampled.reshape(n, groups, -1, oh * ow)
    product = weight.reshape(groups, weight.shape[0] // groups, -1) @ columns
    return product.reshape(n, -1, oh, ow) + bias.view(1, -1, 1, 1)


def _shape(x, weight, offset, *_):
    return x.new_empty(x.shape[0], weight.shape[0], *offset.shape[2:])


def by_hand(x, weight, offset, mask, bias, stride, padding, dilation, groups, offset_groups):
    """The definition, one number after the other, in float64."""
    n, c, h, w = x.shape
    filters, per_group, kh, kw = weight.shape
    out = np.zeros((n, filters, *offset.shape[2:]))

    def pixel(b, channel, i, j):
        return float(x[b, channel, i, j]) if 0 <= i < h and 0 <= j < w else 0.0

    for b, f, r, s in np.ndindex(out.shape):
        total = float(bias[f])
        for k, i, j in np.ndindex(per_group, kh, kw):
            channel = f // (filters // groups) * per_group + k
            tap = channel // (c // offset_groups) * kh * kw + i * kw + j
            y = r * stride[0] - padding[0] + i * dilation[0] + float(offset[b, 2 * tap, r, s])
            z = s * stride[1] - padding[1] + j * dilation[1] + float(offset[b, 2 * tap + 1, r, s])
            top, left = math.floor(y), math.floor(z)
            value = sum(
                pixel(b, channel, top + p, left + q) * abs(1 - p - (y - top)) * abs(1 - q - (z - left))
                for p in (0, 1)
                for q in (0, 1)
            )
            total += value * float(weight[f, k, i, j]) * (1.0 if mask is None else float(mask[b, tap, r, s]))
        out[b, f, r, s] = total
    return out


BODY = """
# written for opset 12 and valid ever since: nothing in it has changed
deform_conv2d <stride, padding, dilation, groups, offset_groups, use_mask>
              (input, weight, offset, mask, bias) => (output) {
  first = Constant <value = int64 {0}> ()
  second = Constant <value = int64 {1}> ()
  third = Constant <value = int64 {2}> ()
  fourth = Constant <value = int64 {3}> ()
  spatial = Constant <value = int64[2] {2, 3}> ()
  rest = Constant <value = int64[1] {-1}> ()
  minus = Constant <value = float {-1.0}> ()
  plus = Constant <value = float {1.0}> ()

  input_shape = Shape (input)
  weight_shape = Shape (weight)
  offset_shape = Shape (offset)
  kernel = Gather (weight_shape, spatial)
  places = Gather (offset_shape, spatial)
  strides = Constant <value_ints: ints = @stride> ()
  paddings = Constant <value_ints: ints = @padding> ()
  dilations = Constant <value_ints: ints = @dilation> ()

  # where each tap looks before it is moved: rows kernel_h×1×out_h×1, columns 1×kernel_w×1×out_w
  kernel_h = Gather (kernel, first)
  kernel_w = Gather (kernel, second)
  out_h = Gather (places, first)
  out_w = Gather (places, second)
  stride_h = Gather (strides, first)
  stride_w = Gather (strides, second)
  pad_h = Gather (paddings, first)
  pad_w = Gather (paddings, second)
  dilation_h = Gather (dilations, first)
  dilation_w = Gather (dilations, second)
  tap_i = Range (first, kernel_h, second)
  tap_j = Range (first, kernel_w, second)
  place_i = Range (first, out_h, second)
  place_j = Range (first, out_w, second)
  tap_y = Mul (tap_i, dilation_h)
  tap_x = Mul (tap_j, dilation_w)
  place_y = Mul (place_i, stride_h)
  place_x = Mul (place_j, stride_w)
  start_y = Sub (place_y, pad_h)
  start_x = Sub (place_x, pad_w)
  axis_kernel_h = Constant <value = int64[4] {-1, 1, 1, 1}> ()
  axis_kernel_w = Constant <value = int64[4] {1, -1, 1, 1}> ()
  axis_out_h = Constant <value = int64[4] {1, 1, -1, 1}> ()
  axis_out_w = Constant <value = int64[4] {1, 1, 1, -1}> ()
  along_kernel_h = Reshape (tap_y, axis_kernel_h)
  along_kernel_w = Reshape (tap_x, axis_kernel_w)
  along_out_h = Reshape (start_y, axis_out_h)
  along_out_w = Reshape (start_x, axis_out_w)
  row_integer = Add (along_kernel_h, along_out_h)
  column_integer = Add (along_kernel_w, along_out_w)
  row = Cast <to = 1> (row_integer)
  column = Cast <to = 1> (column_integer)

  # moved by the offsets: batch·offset_groups × samples × 1
  pair = Constant <value = int64[1] {2}> ()
  offsets_shape = Concat <axis = 0> (rest, kernel, pair, places)
  offsets = Reshape (offset, offsets_shape)
  offset_y = Gather <axis = 3> (offsets, first)
  offset_x = Gather <axis = 3> (offsets, second)
  moved_y = Add (offset_y, row)
  moved_x = Add (offset_x, column)
  samples = Constant <value = int64[3] {0, -1, 1}> ()
  y = Reshape (moved_y, samples)
  x = Reshape (moved_x, samples)

  # the image with a border of zeros, as batch·offset_groups × pixels × channels
  border = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
  padded = Pad (input, border)
  height = Gather (input_shape, third)
  width = Gather (input_shape, fourth)
  padded_h = Add (height, third)
  padded_w = Add (width, third)
  pixel_count = Mul (padded_h, padded_w)
  batch = Gather (input_shape, first)
  offset_group_count = Constant <value_int: int = @offset_groups> ()
  slices = Mul (batch, offset_group_count)
  one_axis = Constant <value = int64[1] {1}> ()
  pixel_axis = Reshape (pixel_count, one_axis)
  slice_axis = Reshape (slices, one_axis)
  planes_shape = Concat <axis = 0> (slice_axis, rest, pixel_axis)
  planes = Reshape (padded, planes_shape)
  pixels = Transpose <perm = [0, 2, 1]> (planes)

  # the four neighbors; what lies outside is moved to the border, where the image is zero
  top = Floor (y)
  left = Floor (x)
  bottom = Add (top, plus)
  right = Add (left, plus)
  height_f = Cast <to = 1> (height)
  width_f = Cast <to = 1> (width)
  top_below = Min (top, height_f)
  bottom_below = Min (bottom, height_f)
  left_below = Min (left, width_f)
  right_below = Min (right, width_f)
  top_inside = Max (top_below, minus)
  bottom_inside = Max (bottom_below, minus)
  left_inside = Max (left_below, minus)
  right_inside = Max (right_below, minus)
  top_index = Cast <to = 7> (top_inside)
  bottom_index = Cast <to = 7> (bottom_inside)
  left_index = Cast <to = 7> (left_inside)
  right_index = Cast <to = 7> (right_inside)
  top_row = Add (top_index, second)
  bottom_row = Add (bottom_index, second)
  left_column = Add (left_index, second)
  right_column = Add (right_index, second)
  top_start = Mul (top_row, padded_w)
  bottom_start = Mul (bottom_row, padded_w)
  top_left = Add (top_start, left_column)
  top_right = Add (top_start, right_column)
  bottom_left = Add (bottom_start, left_column)
  bottom_right = Add (bottom_start, right_column)
  value_top_left = GatherND <batch_dims = 1> (pixels, top_left)
  value_top_right = GatherND <batch_dims = 1> (pixels, top_right)
  value_bottom_left = GatherND <batch_dims = 1> (pixels, bottom_left)
  value_bottom_right = GatherND <batch_dims = 1> (pixels, bottom_right)

  # bilinear: first along x, then along y
  to_left = Sub (x, left)
  to_top = Sub (y, top)
  to_right = Sub (plus, to_left)
  to_bottom = Sub (plus, to_top)
  top_a = Mul (value_top_left, to_right)
  top_b = Mul (value_top_right, to_left)
  bottom_a = Mul (value_bottom_left, to_right)
  bottom_b = Mul (value_bottom_right, to_left)
  upper = Add (top_a, top_b)
  lower = Add (bottom_a, bottom_b)
  upper_part = Mul (upper, to_bottom)
  lower_part = Mul (lower, to_top)
  sampled = Add (upper_part, lower_part)

  mask_number = Constant <value_int: int = @use_mask> ()
  has_mask = Cast <to = 9> (mask_number)
  factor = If (has_mask) <
    then_branch = masked () => (float[s, l, 1] given) {
      factor_shape = Concat <axis = 0> (slice_axis, rest, one_axis)
      given = Reshape (mask, factor_shape)
    },
    else_branch = unmasked () => (float nothing) { nothing = Constant <value = float {1.0}> () }>
  weighed = Mul (sampled, factor)

  # one product per group: weights out/groups × taps, samples taps × places
  kernel_taps = Mul (kernel_h, kernel_w)
  place_count = Mul (out_h, out_w)
  tap_axis = Reshape (kernel_taps, one_axis)
  place_axis = Reshape (place_count, one_axis)
  batch_axis = Reshape (batch, one_axis)
  separate_shape = Concat <axis = 0> (slice_axis, tap_axis, place_axis, rest)
  separate = Reshape (weighed, separate_shape)
  ordered = Transpose <perm = [0, 3, 1, 2]> (separate)
  group_count = Constant <value_int: int = @groups> ()
  group_axis = Reshape (group_count, one_axis)
  columns_shape = Concat <axis = 0> (batch_axis, group_axis, rest, place_axis)
  columns = Reshape (ordered, columns_shape)
  filters = Gather (weight_shape, first)
  filters_per_group = Div (filters, group_count)
  filter_axis = Reshape (filters_per_group, one_axis)
  filters_shape = Concat <axis = 0> (group_axis, filter_axis, rest)
  grouped = Reshape (weight, filters_shape)
  product = MatMul (grouped, columns)
  result_shape = Concat <axis = 0> (batch_axis, rest, places)
  result = Reshape (product, result_shape)
  bias_shape = Constant <value = int64[4] {1, -1, 1, 1}> ()
  biases = Reshape (bias, bias_shape)
  output = Add (result, biases)
}
"""
