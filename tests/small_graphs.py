"""Graphs as text that several tests of propagation look at."""

CHAIN = """
    x = Placeholder
    w = Placeholder
    axis = Const dtype=int32
    allow1 = MatMul(x, w)
"""

STEP = """
    handle = VarHandleOp dtype=float32 shape=[2,2]
    moment = VarHandleOp dtype=float32 shape=[2,2]
    rate = Placeholder
    x = Placeholder
    w = ReadVariableOp(handle)
    forward = MatMul(x, w)
    relu = Relu(forward)
    relu_grad = ReluGrad(relu, relu)
    bias_grad = BiasAddGrad(relu_grad)
    weight_grad = MatMul(x, relu_grad) transpose_a=true
    square = Mul(weight_grad, weight_grad)
    scaled = Mul(rate, square)
    moved = AssignAddVariableOp(moment, scaled)
    stepped = Mul(rate, weight_grad)
    update = AssignSubVariableOp(handle, stepped)
    bias_step = Mul(rate, bias_grad)
    bias_update = AssignSubVariableOp(handle, bias_step)
"""

LOOP = """
    x = Placeholder
    w = Placeholder
    limit = Const dtype=int32 value=3
    one = Const dtype=int32 value=1
    zero = Const dtype=int32 value=0
    i_enter = Enter(zero) frame_name=loop T=int32
    enter = Enter(x) frame_name=loop
    w_enter = Enter(w) frame_name=loop is_constant=true
    i_merge = Merge(i_enter, i_next) T=int32
    merge = Merge(enter, next)
    less = Less(i_merge, limit) T=int32
    go = LoopCond(less)
    i_switch = Switch(i_merge, go) T=int32
    i_add = AddV2(i_switch:1, one) T=int32
    i_next = NextIteration(i_add) T=int32
    switch = Switch(merge, go)
    product = MatMul(switch:1, w_enter)
    next = NextIteration(product)
    exit = Exit(switch)
    fetch = Identity(exit)
"""

LIST = """
    x = Placeholder
    count = Const dtype=int32 value=2
    shape = Const dtype=int32 value=[2,2]
    zero = Const dtype=int32 value=0
    empty = TensorListReserve(shape, count) shape_type=int32 element_dtype=float32
    product = MatMul(x, x)
    full = TensorListSetItem(empty, zero, product)
    passed = Identity(full) T=variant
    item = TensorListGetItem(passed, zero, shape)
    all = TensorListStack(passed, shape)
    fetch = IdentityN(item, all)
"""

EXCLUSION = """
    x = Placeholder
    w = Placeholder
    model/body/MatMul = MatMul(x, w)
    model/head/MatMul = MatMul(model/body/MatMul, w)
    gradient_tape/model/head/MatMul/MatMul_1 = MatMul(x, w)
    gradient_tape/model/body/MatMul/MatMul_1 = MatMul(x, w)
    train/gradients_1/model/head/MatMul_grad/MatMul = MatMul(x, w)
    PartitionedCall/gradient_tape/model/head/MatMul/MatMul = MatMul(x, w)
    fetch = AddN(model/head/MatMul, gradient_tape/model/head/MatMul/MatMul_1, \
gradient_tape/model/body/MatMul/MatMul_1, \
train/gradients_1/model/head/MatMul_grad/MatMul, \
PartitionedCall/gradient_tape/model/head/MatMul/MatMul)
"""
