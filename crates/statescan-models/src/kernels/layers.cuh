// Kernels of language models share this: how those of one decoded token follow one another, sums over threads, and a step of the convolution in
// front of a scan.
#pragma once

// Lets the next kernel of the stream begin, as far as there is room for it.
DEVICE void begin_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the kernel before has ended and what it wrote can be read. Every kernel that was launched early calls it, so that those before that
// one have ended too. Before it only weights are read, and states that no other kernel of a token writes.
DEVICE void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The operation on the row of a product before it.
enum class Before { Nothing, Norm, Conv };

// The sum of each LANES neighbouring threads, in all of them.
template <int LANES> DEVICE f32 sum_of_lanes(f32 v) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// A step of a channel's convolution, as far as it is known before the present input: the bias and the past inputs times their weights.
template <int WIDTH> struct Convolution {
  f32 sum, weight;

  template <typename Conv> DEVICE void prepare(const Conv& conv, i64 channel) {
    const f32* const past = conv.state + channel * (WIDTH - 1);
    const f32* const weights = conv.weight + channel * WIDTH;
    sum = conv.bias ? conv.bias[channel] : 0.f;
#pragma unroll
    for (int k = 0; k + 1 < WIDTH; k++) sum = __fmaf_rn(weights[k], past[k], sum);
    weight = weights[WIDTH - 1];
  }
  DEVICE f32 of(f32 input) const { return silu(__fmaf_rn(weight, input, sum)); }
};

template <int WIDTH, typename Conv> DEVICE f32 convolved(const Conv& conv, i64 channel) {
  Convolution<WIDTH> step;
  step.prepare(conv, channel);
  return step.of(conv.input[channel]);
}

// The state of a channel after this step.
template <int WIDTH, typename Conv> DEVICE void move_on(const Conv& conv, i64 channel) {
  f32* const past = conv.state + channel * (WIDTH - 1);
#pragma unroll
  for (int k = 0; k + 2 < WIDTH; k++) past[k] = past[k + 1];
  past[WIDTH - 2] = conv.input[channel];
}
