//! Which addresses may be fetched: those of the public internet. A feed URL comes from a stranger, and what it names must not
//! be a service inside the network of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address belongs to the public internet. IPv6 forms that carry an IPv4 address are judged by that address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match (a, b, c) {
        // This network, carrier-grade NAT, protocol assignments, 6to4 relays, benchmarks.
        (0, ..) | (100, 64..=127, _) | (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) => true,
        // Multicast, reserved, broadcast.
        (224.., ..) => true,
        _ => false,
    };
    !(special
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    match address.segments() {
        // NAT64.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(joined(high, low)),
        // 6to4.
        [0x2002, high, low, ..] => is_public_v4(joined(high, low)),
        // Teredo, ORCHID and other protocol assignments; documentation.
        [0x2001, 0..=0x01ff, ..] | [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => false,
        // Global unicast is 2000::/3. Everything else is loopback, private, link-local, multicast or reserved.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// The IPv4 address in two segments of an IPv6 address.
fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().expect("an address"))
    }

    #[test]
    fn public_addresses_are_fetched() {
        for address in ["1.1.1.1", "93.184.216.34", "100.63.0.1", "172.32.0.1", "2606:4700::1111"] {
            assert!(public(address), "{address}");
        }
        for carried in ["::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"] {
            assert!(public(carried), "{carried}");
        }
    }

    #[test]
    fn addresses_inside_a_network_are_refused() {
        let v4 = [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ];
        for address in v4 {
            assert!(!public(address), "{address}");
            let v4: Ipv4Addr = address.parse().expect("an address");
            let [a, b, c, d] = v4.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            assert!(!public(&format!("::ffff:{address}")), "mapped {address}");
            assert!(!public(&format!("64:ff9b::{high:x}:{low:x}")), "NAT64 {address}");
            assert!(!public(&format!("2002:{high:x}:{low:x}::1")), "6to4 {address}");
        }
        let v6 = [
            "::",
            "::1",
            "::127.0.0.1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "3fff::1",
            "64:ff9b:1::1",
            "100::1",
        ];
        for address in v6 {
            assert!(!public(address), "{address}");
        }
    }
}
