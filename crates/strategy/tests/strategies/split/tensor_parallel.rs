//! Two linear layers, the first split by columns and the second by rows, beside one rank that has
//! the whole layers.

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{LinearPart, Mapping, TensorParallel};

use crate::linear::{noises, trained_part, whole};

const STEPS: usize = 50;

#[test]
fn parts_of_a_weight_make_up_the_whole_and_differ_by_one_at_most() {
    for (inputs, outputs) in [(1, 1), (3, 5), (5, 3), (4, 8), (7, 7)] {
        let whole = noises(0, inputs * outputs);
        for size in 1..9 {
            for parts in [LinearPart::by_columns, LinearPart::by_rows] {
                let mut joined = vec![f32::NAN; whole.len()];
                let (mut inputs_of, mut outputs_of) = (Vec::new(), Vec::new());
                for rank in 0..size {
                    let part = parts(inputs, outputs, rank, size);
                    let weight = part.cut(&whole).unwrap();
                    assert_eq!(weight.len(), part.inputs.len() * part.outputs.len());
                    // A number of the part is where its input and output say.
                    for (row, output) in part.outputs.clone().enumerate() {
                        for (column, input) in part.inputs.clone().enumerate() {
                            let it = weight[row * part.inputs.len() + column];
                            assert_eq!(it, whole[output * inputs + input]);
                        }
                    }
                    part.put(&weight, &mut joined).unwrap();
                    inputs_of.push(part.inputs.len());
                    outputs_of.push(part.outputs.len());
                }
                assert_eq!(joined, whole);
                for sides in [inputs_of, outputs_of] {
                    let (least, most) = (sides.iter().min().unwrap(), sides.iter().max().unwrap());
                    assert!(most - least <= 1, "{inputs} x {outputs}, {size}: {sides:?}");
                }
                let part = parts(inputs, outputs, 0, size);
                assert!(part.put(&[0.0; 99], &mut joined).is_err());
                if !part.inputs.is_empty() && !part.outputs.is_empty() {
                    for rank in 0..size {
                        let part = parts(inputs, outputs, rank, size);
                        assert!(part.cut(&whole[1..]).is_err());
                        assert!(part.cut(&[&whole[..], &[0.0]].concat()).is_err());
                    }
                }
            }
        }
    }
}

/// The whole parameters after [`STEPS`] steps, and the last loss.
fn trained(n: usize, inputs: usize, hidden: usize, outputs: usize) -> (Vec<Vec<f32>>, f32) {
    let widths = [inputs, hidden, outputs];
    let ranks = on_ranks(n, |comm: &mut Communicator| {
        trained_part(comm.duplicate().unwrap(), widths, STEPS)
    });
    let (whole, (first, first_loss)) = (whole(widths), &ranks[0]);
    let mut joined = whole.clone();
    for (rank, (parameters, loss)) in ranks.iter().enumerate() {
        // The results that all ranks have are the same at all, to the bit.
        assert!(parameters[0] == first[0] && parameters[4] == first[4]);
        assert_eq!(loss, first_loss);
        let columns = LinearPart::by_columns(inputs, hidden, rank, n);
        columns.put(&parameters[1], &mut joined[1]).unwrap();
        joined[2][columns.outputs].copy_from_slice(&parameters[2]);
        let rows = LinearPart::by_rows(hidden, outputs, rank, n);
        rows.put(&parameters[3], &mut joined[3]).unwrap();
    }
    (joined[0], joined[4]) = (first[0].clone(), first[4].clone());
    assert!(joined.iter().zip(&whole).all(|(after, before)| after != before));
    (joined.into(), *first_loss)
}

#[test]
fn two_layers_end_with_the_parameters_of_one_rank() {
    // 8 is divisible by 1, 2 and 4; 7 by none; with 3 a rank of 4 has no part.
    for hidden in [8, 7, 3] {
        let (alone, loss) = trained(1, 5, hidden, 3);
        for n in 2..=4 {
            let (split, other) = trained(n, 5, hidden, 3);
            let square = |it: f32| f64::from(it).powi(2);
            let pairs = || alone.iter().flatten().zip(split.iter().flatten());
            let apart = pairs().map(|(one, other)| square(one - other)).sum::<f64>();
            let distance = (apart / pairs().map(|(one, _)| square(*one)).sum::<f64>()).sqrt();
            assert!(distance < 1e-5, "{n} ranks, {hidden} hidden: {distance:e}");
            assert!((loss - other).abs() < 1e-4 * loss);
        }
    }
}

#[test]
fn columns_are_gathered_and_scattered() {
    for n in 1..=4 {
        for columns in [1, 3, 4, 7] {
            let rows = 3;
            let whole = noises(0, rows * columns);
            on_ranks(n, |comm: &mut Communicator| {
                let mut group = TensorParallel::new(comm.duplicate().unwrap());
                let mapping = Mapping::Gather { columns };
                let place = LinearPart::by_columns(1, columns, group.rank(), n).outputs;
                let mine: Vec<f32> =
                    whole.chunks(columns).flat_map(|row| row[place.clone()].to_vec()).collect();
                assert_eq!(group.forward(mapping, mine.clone()).unwrap(), whole);
                assert_eq!(group.backward(mapping, whole.clone()).unwrap(), mine);
                let scatter = Mapping::Scatter { columns };
                assert_eq!(group.forward(scatter, whole.clone()).unwrap(), mine);
                assert_eq!(group.backward(scatter, mine).unwrap(), whole);
                let mut numbers = [1.0, group.rank() as f64];
                group.add_up(&mut numbers).unwrap();
                assert_eq!(numbers, [n as f64, (n * (n - 1) / 2) as f64]);
            });
        }
    }
}

#[test]
fn activations_that_are_no_whole_rows_are_refused() {
    let mut group = TensorParallel::new(Communicator::local(1).unwrap().remove(0));
    for columns in [0, 3] {
        for mapping in [Mapping::Scatter { columns }, Mapping::Gather { columns }] {
            let error = group.forward(mapping, vec![0.0; 4]).unwrap_err().to_string();
            assert!(error.contains("a number that divides the 4 activations"), "{error}");
        }
    }
}

#[test]
fn bytes_of_a_border_are_those_of_a_ring() {
    assert_eq!(Mapping::Reduce.sent_bytes(1200, 4), 1800);
    assert_eq!(Mapping::Gather { columns: 3 }.sent_bytes(1200, 4), 900);
    for mapping in [Mapping::Copy, Mapping::Reduce, Mapping::Scatter { columns: 1 }] {
        assert_eq!(mapping.sent_bytes(1200, 1), 0);
        assert_eq!(mapping.conjugate().conjugate(), mapping);
        // One of the two directions communicates.
        let both = [mapping, mapping.conjugate()].map(|it| it.sent_bytes(1200, 3));
        assert!(both.contains(&0) && both.iter().any(|bytes| *bytes > 0));
    }
}
